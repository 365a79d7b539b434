"""Which layers share a code, and how: the plan of an export.

A plan is plain data. It is made from the options of one mode (``paper_plan.py``), written into the
manifest, and read by ``passes/apply_plan.py``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from minicache.exporter import schemas
from minicache.exporter.retention import Retention
from minicache.runtime.errors import PlanError
from minicache.runtime.eviction.evictor import RESTS
from minicache.runtime.eviction.parse import parse_policy

DEFAULT_WINDOW, DEFAULT_SINKS, DEFAULT_SLACK = 64, 4, 64


@dataclass(frozen=True)
class Group:
    """Layers that share one code per token; ``exact`` groups hold one layer and no code.

    Attributes:
        layers: ascending layer indices, all of one kind.
        mode: ``exact``, ``slerp`` or ``subspace``.
        code_bits: slerp: bits per component of the shared direction.
        slerp_t: slerp: parameter t.
        magnitude: slerp: which magnitudes restore a layer.
        retention: slerp: which tokens keep their full vectors.
        align: slerp: turn the layers to each other first, by a calibration.
        delta_bits: slerp, of pairs: bits per component of what the direction lacks; 0: none.
        delta_rank: slerp, of pairs: coefficients of it in a calibrated basis; 0: none.
        code_heads: subspace: Hc, a divisor of Hk.
        key_bits_per_element: subspace: most bits per key element, padding and magnitude included.
        value_bits_per_element: subspace: likewise for values.
    """

    layers: tuple[int, ...]
    mode: str = "exact"
    code_bits: int = 16
    slerp_t: float = 0.6
    magnitude: str = "own"
    retention: Retention = field(default_factory=Retention)
    align: bool = False
    delta_bits: int = 0
    delta_rank: int = 0
    code_heads: int = 0
    key_bits_per_element: float = 0.0
    value_bits_per_element: float = 0.0

    def __post_init__(self) -> None:
        if self.mode == "exact" and len(self.layers) != 1:
            raise PlanError(f"an exact group holds one layer, not {list(self.layers)}")
        if self.mode == "slerp" and len(self.layers) < 2:
            raise PlanError(f"slerp merges at least two layers, not {list(self.layers)}")
        if self.align and self.mode != "slerp":
            raise PlanError(f"layers {list(self.layers)}: only slerp aligns, not {self.mode}")
        deltas = bool(self.delta_bits or self.delta_rank)
        if deltas and (self.mode != "slerp" or len(self.layers) != 2 or self.slerp_t != 0.5):
            raise PlanError(f"layers {list(self.layers)}: only pairs merged at t = 0.5 have deltas")
        if self.mode == "subspace" and self.code_heads < 1:
            raise PlanError(f"the group of layers {list(self.layers)} has no code_heads")


@dataclass(frozen=True)
class Plan:
    """All groups of a model, and what they share.

    Attributes:
        mode: what the user asked for: ``exact``, ``paper`` or ``subspace``.
        groups: in layer order; every layer is in exactly one.
        window: recent tokens W that stay exact in coded groups.
        sinks: first tokens N that stay exact in coded groups.
        slack: tokens X that can be taken back, on top of the window.
        max_sequence_length: longest text; unless tokens are evicted, the largest capacity C.
        sensitivities: subspace: by ``key`` and ``value``, each full-attention layer's weight in its
            group's basis.
        evict: which tokens go, as ``--evict`` takes it; empty: none.
    """

    mode: str
    groups: tuple[Group, ...]
    max_sequence_length: int
    window: int = DEFAULT_WINDOW
    sinks: int = DEFAULT_SINKS
    slack: int = DEFAULT_SLACK
    sensitivities: dict[str, tuple[float, ...]] = field(default_factory=dict)
    evict: str = ""

    def __post_init__(self) -> None:
        layers = [layer for group in self.groups for layer in group.layers]
        if sorted(layers) != list(range(len(layers))):
            raise PlanError(f"the groups do not cover each layer once: {layers}")
        capacity = self.max_sequence_length
        if capacity < schemas.CAPACITY_MULTIPLE:
            raise PlanError(
                f"the max sequence length is {capacity}; give at least {schemas.CAPACITY_MULTIPLE}"
            )
        for name, value, low, usual in (
            ("window", self.window, 0, DEFAULT_WINDOW),
            ("number of sinks", self.sinks, 0, DEFAULT_SINKS),
            ("rewind slack", self.slack, 1, DEFAULT_SLACK),
        ):
            # More than the capacity is a ring that is never filled, but the defaults always pass.
            if not low <= value <= max(capacity, usual):
                raise PlanError(
                    f"the {name} is {value}; give {low}..{max(capacity, usual)} (the max sequence "
                    f"length is {capacity})"
                )

        if self.evict:
            self._check_budget()

    def _check_budget(self) -> None:
        policy = parse_policy(self.evict)
        stay = self.sinks + self.window + self.slack + RESTS
        if policy.budget < stay:
            raise PlanError(
                f"--evict {self.evict} keeps {policy.budget} tokens; give at least {stay}: sinks, "
                "window and rewind slack stay, and tokens go in whole blocks"
            )

    @property
    def coded(self) -> bool:
        """Whether any token is ever stored as a code."""
        return any(group.mode != "exact" for group in self.groups)

    @property
    def lossy(self) -> bool:
        """Whether any token is ever stored as a code, or evicted."""
        return self.coded or bool(self.evict)

    def to_dict(self) -> dict[str, Any]:
        """Returns the plan as JSON-ready data."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Plan:
        """Reads what ``to_dict`` wrote.

        Raises:
            PlanError: a missing, unknown or contradictory field.
        """
        try:
            groups = tuple(
                Group(
                    **{
                        **group,
                        "layers": tuple(group["layers"]),
                        "retention": Retention(**group["retention"]),
                    }
                )
                for group in data["groups"]
            )
            weights = {kind: tuple(row) for kind, row in data.get("sensitivities", {}).items()}
            return Plan(**{**data, "groups": groups, "sensitivities": weights})
        except (KeyError, TypeError) as error:
            raise PlanError(f"the plan lacks or misnames a field: {error}") from error


def node_attributes(plan: Plan, group: Group, code_layout: str, head_dim: int) -> dict[str, Any]:
    """Attributes that make a node of ``group`` out of an exact node's, by ``schemas`` names."""
    if group.mode == "exact":
        return {}
    shared = {
        "code_layout": code_layout,
        "window": plan.window,
        "sinks": plan.sinks,
        "ring_slots": plan.window + plan.slack,
    }
    if group.mode == "subspace":
        return shared  # the rest is the codec's
    retention = group.retention
    values: dict[str, Any] = {
        **shared,
        "mode": group.mode,
        "group_size": len(group.layers),
        "key_bits": (group.code_bits, head_dim),
        "value_bits": (group.code_bits, head_dim),
        "slerp_t": group.slerp_t,
        "magnitude": group.magnitude,
        "delta_bits": group.delta_bits,
        "delta_rank": group.delta_rank,
        "retention": retention.policy,
        "retention_scope": retention.scope,
    }
    if retention.policy == "threshold":
        values["retention_threshold"] = retention.value
    if retention.policy == "minmax":
        values["retention_gamma"] = retention.value
    known = {attribute.name for attribute in schemas.ATTRIBUTES}
    assert set(values) <= known, set(values) - known
    return values
