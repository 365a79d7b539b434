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

    The paper's models have layers of one kind. Here layers of different kind never share a group,
    and sliding-window layers stay as they are, so that "adjacent" means neighbours among the full
    layers of a kind (Gemma 3: layers 5, 11, 17, ...). Those from S on are cut into groups, lowest
    first; what is left over stays exact.

    Args:
        layers: the model's attention layers in order.
        group: the settings every merged group takes; its ``layers`` are ignored.
        group_size: layers per group G; the paper's is 2.
        start_layer: first layer S that may be merged; None: ``default_start_layer`` of the full
            layers.
        max_sequence_length: largest capacity C.
        window: exact recent tokens W. The paper has none; without them the loss is larger still.
        sinks: exact first tokens N.
        slack: rewind slack X.

    Raises:
        PlanError: S or G do not fit the model, or there are no layers to fill a group.
    """
    count = len(layers)
    if not 2 <= group_size <= count:
        raise PlanError(f"--group-size {group_size} is not within 2..{count} (the model's layers)")
    full = [layer for layer in range(count) if not layers[layer].local_window]
    if start_layer is None:
        enough = len(full) >= group_size
        start = full[default_start_layer(len(full), group_size)] if enough else 0
    else:
        start = start_layer
    if not 0 <= start <= count - group_size:
        raise PlanError(
            f"--start-layer {start} is not within 0..{count - group_size}: "
            f"the model has {count} layers and a group takes {group_size}"
        )
    groups = [
        dataclasses.replace(group, layers=members, mode="slerp")
        for members in _cut(layers, [layer for layer in full if layer >= start], group_size)
    ]
    merged = {layer for members in groups for layer in members.layers}
    groups += [Group((layer,)) for layer in range(count) if layer not in merged]
    groups.sort(key=lambda members: members.layers)
    plan = Plan("paper", tuple(groups), max_sequence_length, window, sinks, slack)
    if not plan.lossy:
        raise PlanError(
            f"no {group_size} layers from layer {start} on are alike and of full attention, so "
            f"nothing can be merged; use {_remedy(layers, full, group_size)}"
        )
    return plan


def _cut(
    layers: Sequence[Layer], candidates: Sequence[int], group_size: int
) -> list[tuple[int, ...]]:
    """Groups of neighbours among the candidates of each kind; incomplete ones are left out."""
    by_kind: dict[object, list[int]] = {}
    for layer in candidates:
        by_kind.setdefault(layers[layer].kind, []).append(layer)
    return [
        tuple(alike[first : first + group_size])
        for alike in by_kind.values()
        for first in range(0, len(alike) - group_size + 1, group_size)
    ]


def _remedy(layers: Sequence[Layer], full: Sequence[int], group_size: int) -> str:
    """The options that make something of layers of which this plan merges none."""
    for size in range(group_size, 1, -1):
        groups = _cut(layers, full, size)
        if groups:
            start = f"--start-layer {min(groups)[0]}"
            return start if size == group_size else f"--group-size {size} {start}"
    return "--mode subspace, which also codes single layers" if full else "--mode exact"
