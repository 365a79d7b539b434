"""Eviction: which slots hold the tokens that are left (docs/operator.md, "Eviction").

Evicted tokens leave no holes among the slots. What is left of a segment keeps its order, and counts
as the segment's last positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from minicache.exporter import schemas
from minicache.plugins.reference.primitives import Array


@dataclass(frozen=True)
class SlotMap:
    """Where the tokens of one batch row lie: among codes, or in ``exact`` mode among exact slots.

    Attributes:
        length: L; 0: one segment for all.
        evicted: ``[n + 1]``, the row's part of the state ``evicted``.
        sinks: N; 0 in ``exact`` mode.
    """

    length: int
    evicted: Array
    sinks: int

    @property
    def total(self) -> int:
        """E: all tokens that are evicted from the row."""
        return int(self.evicted[-1])

    def segments(self, positions: Array) -> Array:
        """Number of the segment of each position."""
        return positions // self.length if self.length else np.zeros_like(positions)

    def slots(self, positions: Array) -> Array:
        """Slot of each position that is left."""
        moved = positions - self.evicted[self.segments(positions) + 1]
        return np.where(positions < self.sinks, positions, moved)

    def is_left(self, positions: Array) -> Array:
        """Whether positions are not evicted; in each segment, and after the sinks, the last are."""
        segment = self.segments(positions)
        first = np.maximum(segment * self.length, self.sinks)
        gone = self.evicted[segment + 1] - self.evicted[segment]
        left: Array = (positions >= first + gone) | (positions < self.sinks)
        return left

    def check(self, coded_end: int) -> None:
        """Refuses a table that no policy writes.

        Args:
            coded_end: c0; in ``exact`` mode the tokens before the call.

        Raises:
            ValueError: more tokens are evicted from a segment than may be.
        """
        starts = np.arange(len(self.evicted)) * self.length
        if not self.length:
            starts = np.array([0, coded_end])
        most = np.diff(np.clip(starts, min(self.sinks, coded_end), coded_end))
        gone = np.diff(self.evicted)
        if self.evicted[0] != 0 or (gone < 0).any() or (gone > most).any():
            raise ValueError(
                f"evicted is {self.evicted.tolist()}, but the segments have {most.tolist()} tokens "
                "that could be"
            )

    def check_retained(self, position: Array, coded_end: int) -> None:
        """Refuses tokens of a side buffer ``[P]`` whose codes were evicted.

        Raises:
            ValueError: a retained token before ``coded_end`` is not left.
        """
        coded = (position >= self.sinks) & (position < coded_end)
        gone = np.flatnonzero(coded)[~self.is_left(position[coded].astype(np.int64))]
        if gone.size:
            raise ValueError(
                f"retained_position {gone[0]} is {position[gone[0]]}, a token that was evicted"
            )


def slot_map(attributes: Mapping[str, Any], state: Mapping[str, Array], row: int) -> SlotMap:
    """The slots of one batch row; those of a group that evicts nothing are its positions."""
    sinks = 0 if attributes["mode"] == "exact" else int(attributes["sinks"])
    if "evicted" not in state:
        return SlotMap(0, np.zeros(2, np.int64), sinks)
    return SlotMap(
        schemas.segment_length(attributes), state["evicted"][row].astype(np.int64), sinks
    )


def add_mass(
    attributes: Mapping[str, Any],
    mass: Array,
    cached: Array,
    fresh: Array,
    weights: Array,
) -> None:
    """Adds what one call's observed queries attended to.

    Args:
        attributes: of the writer; ``observes``.
        mass: ``[C]`` fp32, one row's part of ``attention_mass``; changed in place.
        cached: ``[tokens]`` slots of the tokens before the call.
        fresh: ``[new]`` slots of the new ones, which start from nothing.
        weights: ``[H, new, tokens + new]``, the softmax of the writer's layer, cached ones first.
    """
    observes = attributes["observes"]
    observed = weights if observes < 0 else weights[:, -observes:]
    gained = observed.sum(axis=1).mean(axis=0)
    mass[fresh] = gained[len(cached) :]
    mass[cached] += gained[: len(cached)]
