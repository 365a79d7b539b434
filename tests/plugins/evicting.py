"""A group whose rows evict, and the judge: the same group, that hides evicted tokens instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minicache.exporter import schemas
from tests.helpers import Call, Text, make_attributes, poisoned_state
from tests.plugins.evicting_row import SLACK, EvictingRow
from tests.plugins.subspace_text import make_tables, subspace_attributes
from tests.plugins.walk import ReferenceGroup

__all__ = ["SLACK", "EvictingRow"]  # and what is defined here
Array = np.ndarray
TOKENS, CAPACITY, SEGMENT, SEGMENTS = 112, 112, 32, 4
CODED: dict[str, Any] = {"window": 3, "sinks": 2, "ring_slots": 3 + SLACK}
SLERP: dict[str, Any] = {**CODED, "mode": "slerp"}
# Of the reference, by a name for the test.
MODES: dict[str, dict[str, Any]] = {
    "exact": {},
    "slerp": SLERP,
    "slerp-delta": {**SLERP, "slerp_t": 0.5, "delta_bits": 4},
    "slerp-threshold": {**SLERP, "retention": "threshold", "retention_threshold": 0.7},
    "slerp-minmax": {**SLERP, "retention": "minmax", "retention_gamma": 0.3},
    "slerp-budget": {**SLERP, "retention": "budget"},
    "subspace": {**CODED, "mode": "subspace", "segment_length": SEGMENT, "group_size": 2},
}


def evicting_attributes(mode: str, **given: Any) -> dict[str, Any]:
    """Attributes of a group that evicts."""
    values = {**MODES[mode], "evicts": 1, **given}
    return subspace_attributes(**values) if mode == "subspace" else make_attributes(**values)


def tables_of(attributes: dict[str, Any]) -> list[dict[str, Array]]:
    """The constant inputs of its nodes."""
    return make_tables(attributes) if attributes["mode"] == "subspace" else []


def empty_state(
    attributes: dict[str, Any], batch: int, capacity: int, retained: int, dtype: Any = np.float32
) -> dict[str, Array]:
    """A poisoned state of texts of up to TOKENS tokens."""
    segments = SEGMENTS if schemas.segment_length(attributes) else 1
    return poisoned_state(attributes, batch, capacity, retained, dtype, segments)


class Judge:
    """A group that evicts nothing, and hides what another one has evicted.

    Args:
        attributes: of the evicting group.
        batch: rows.
        retained: M.
        dtype: of the exact slots.
    """

    def __init__(
        self, attributes: dict[str, Any], batch: int, retained: int, dtype: Any = np.float32
    ) -> None:
        self.attributes = {**attributes, "evicts": 0, "observes": 0, "has_bias": 1}
        state = poisoned_state(self.attributes, batch, CAPACITY, retained, dtype)
        self.group = ReferenceGroup(self.attributes, state, tables_of(attributes))

    def step(self, text: Text, call: Call, held: Sequence[Sequence[int]]) -> list[Array]:
        """Runs a call in which rows see ``held`` and their new tokens only."""
        batch, slots, _ = call.queries[0].shape
        bias = np.full((batch, self.attributes["num_heads"], slots, CAPACITY), -np.inf)
        for row, positions in enumerate(held):
            bias[row][..., list(positions)] = 0
            bias[row][..., call.past[row] : call.total[row]] = 0
        call.bias = bias.astype(call.queries[0].dtype)
        try:
            return self.group.step(call)
        finally:
            call.bias = None
