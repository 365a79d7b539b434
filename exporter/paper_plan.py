"""Plans without a search: ``exact``, and the paper's half-depth merge (arXiv:2405.14366)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from minicache.exporter.plan import DEFAULT_SINKS, DEFAULT_SLACK, DEFAULT_WINDOW, Group, Plan
from minicache.runtime.errors import PlanError


class Layer(Protocol):
    """What a plan needs to know of an attention layer."""

    @property
    def kind(self) -> tuple[int | str, ...]:
        """Head counts, head size, window, RoPE: layers of different kind never share a group."""

    @property
    def local_window(self) -> int:
        """Sliding window in tokens; 0 for full attention."""


def exact_plan(layers: Sequence[Layer], max_sequence_length: int, slack: int) -> Plan:
    """Every layer on its own, every token exact: the original model with in-place buffers."""
    groups = tuple(Group((layer,)) for layer in range(len(layers)))
    return Plan("exact", groups, max_sequence_length, window=0, sinks=0, slack=slack)


def default_start_layer(num_layers: int, group_size: int) -> int:
    """The paper's S = L/2, lowered until the layers above fill whole groups."""
    merged = num_layers - num_layers // 2
    merged += -merged % group_size
    return max(num_layers - merged, num_layers % group_size)


def paper_plan(
    layers: Sequence[Layer],
    group: Group,
    *,
    group_size: int = 2,
    start_layer: int | None = None,
    max_sequence_length: int,
    window: int = DEFAULT_WINDOW,
    sinks: int = DEFAULT_SINKS,
    slack: int = DEFAULT_SLACK,
) -> Plan:
    """The paper's plan: adjacent layers from S on share one direction (arXiv:2405.14366, 3.2).

    Layers of different kind never share a group: a run of like layers is cut into groups from its
    start, and what is left over stays exact.

    Args:
        layers: the model's attention layers in order.
        group: the settings every merged group takes; its ``layers`` are ignored.
        group_size: layers per group G; the paper's is 2.
        start_layer: first merged layer S; None means ``default_start_layer``.
        max_sequence_length: largest capacity C.
        window: exact recent tokens W. The paper has none; without them the loss is larger still.
        sinks: exact first tokens N.
        slack: rewind slack X.

    Raises:
        PlanError: S or G do not fit the model, or no two adjacent layers can share a group.
    """
    count = len(layers)
    if not 2 <= group_size <= count:
        raise PlanError(f"--group-size {group_size} is not within 2..{count} (the model's layers)")
    start = default_start_layer(count, group_size) if start_layer is None else start_layer
    if not 0 <= start <= count - group_size:
        raise PlanError(
            f"--start-layer {start} is not within 0..{count - group_size}: "
            f"the model has {count} layers and a group takes {group_size}"
        )
    groups = [Group((layer,)) for layer in range(start)]
    layer = start
    while layer < count:
        members = tuple(range(layer, min(layer + group_size, count)))
        if len(members) == group_size and _mergeable([layers[member] for member in members]):
            groups.append(dataclasses.replace(group, layers=members, mode="slerp"))
            layer += group_size
        else:
            groups.append(Group((layer,)))
            layer += 1
    plan = Plan("paper", tuple(groups), max_sequence_length, window, sinks, slack)
    if not plan.lossy:
        raise PlanError(
            f"no {group_size} adjacent layers from layer {start} on are alike and of full "
            f"attention, so nothing can be merged; use {_remedy(layers, group_size)}"
        )
    return plan


def _remedy(layers: Sequence[Layer], group_size: int) -> str:
    """The options that make something of layers of which this plan merges none."""
    for start in range(len(layers) - group_size + 1):
        if _mergeable(layers[start : start + group_size]):
            return f"--start-layer {start}"
    if all(layer.local_window for layer in layers):
        return "--mode exact"
    return "--mode subspace, which also codes layers that are no neighbours"


def _mergeable(members: Sequence[Layer]) -> bool:
    # A sliding-window layer needs no more than its window: codes would only add to its ring.
    return len({layer.kind for layer in members}) == 1 and not members[0].local_window
