"""A group whose rows evict, and the judge: the same group, that hides evicted tokens instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from minicache.exporter import schemas
from minicache.runtime.eviction.choose import BLOCK
from minicache.runtime.eviction.compact import compact_row, segments_of
from tests.helpers import Call, Text, make_attributes, poisoned_state
from tests.plugins.subspace_text import make_tables, subspace_attributes
from tests.plugins.walk import Group, ReferenceGroup

Array = np.ndarray
TOKENS, CAPACITY, SEGMENT, SEGMENTS = 112, 112, 32, 4
SLACK = 5
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


def protected(attributes: dict[str, Any], length: int) -> tuple[int, int]:
    """Positions [first, end) that may be evicted from a row of ``length`` tokens."""
    if attributes["mode"] == "exact":
        return 0, length - SLACK
    return attributes["sinks"], length - attributes["window"] - SLACK


class EvictingRow:
    """What one row of a group holds: true positions, in the order of slots."""

    def __init__(self, attributes: dict[str, Any]) -> None:
        self.attributes = attributes
        self.held: list[int] = []
        self.length = 0

    def set_length(self, length: int) -> None:
        """Takes positions back, or adds new ones."""
        self.held = [*(p for p in self.held if p < length), *range(self.length, length)]
        self.length = length

    def draw(self, data: st.DataObject, state: dict[str, Array], row: int) -> Array:
        """Chooses what goes: whole blocks of each segment, at random; ``[held]`` slots."""
        rng = np.random.default_rng(data.draw(st.integers(0, 999), "seed"))
        return self.choose(state, row, lambda most: data.draw(st.integers(0, most), "blocks"), rng)

    def choose(
        self,
        state: dict[str, Array],
        row: int,
        blocks: Callable[[int], int],
        rng: np.random.Generator,
    ) -> Array:
        """Likewise; ``blocks`` says how many go of a segment of which so many can."""
        first, end = protected(self.attributes, self.length)
        positions = np.array(self.held, np.int64)
        may_go = (positions >= first) & (positions < end)
        if self.attributes["retention"] == "budget":
            may_go &= ~np.isin(positions, self.stored(state, row))
        width = schemas.segment_length(self.attributes) or TOKENS
        gone = np.zeros(len(positions), bool)
        for segment in range(-(-TOKENS // width)):
            mine = np.flatnonzero(may_go & (positions // width == segment))
            most = len(mine) // BLOCK
            gone[rng.permutation(mine)[: (blocks(most) if most else 0) * BLOCK]] = True
        return gone

    def stored(self, state: dict[str, Array], row: int) -> Array:
        """True positions of the tokens in the side buffer."""
        position = state["retained_position"][row].astype(np.int64)
        position = position[position >= 0]
        slot = position - state["evicted"][row][1]
        slot = slot[slot < len(self.held)]
        return np.array(self.held, np.int64)[slot]

    def evict(self, group: Group, row: int, gone: Array) -> None:
        """Evicts, and checks that each token is counted to the segment that it is of."""
        length = schemas.segment_length(self.attributes)
        tiled = self.attributes["code_layout"] == "tile"
        compact_row(group.state, row, gone, length=length, tiled=tiled)
        self.held = [p for p, goes in zip(self.held, gone, strict=True) if not goes]
        table = group.state["evicted"][row]
        segments = segments_of(table, length, len(self.held))
        wanted = np.array(self.held, np.int64) // (length or 1 << 30)
        np.testing.assert_array_equal(segments, wanted)
        assert not (table % BLOCK).any()


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
