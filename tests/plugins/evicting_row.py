"""A row that evicts: which of its tokens may go, and what is left; nothing but NumPy is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from minicache.exporter import schemas
from minicache.runtime.eviction.choose import BLOCK
from minicache.runtime.eviction.compact import compact_row, segments_of

if TYPE_CHECKING:
    from hypothesis import strategies as st

Array = np.ndarray
SLACK = 5  # X


class Group(Protocol):
    """What holds the state of a group."""

    @property
    def state(self) -> dict[str, Array]: ...


def protected(attributes: dict[str, Any], length: int, slack: int) -> tuple[int, int]:
    """Positions [first, end) that may be evicted from a row of ``length`` tokens."""
    if attributes["mode"] == "exact":
        return 0, length - slack
    return attributes["sinks"], length - attributes["window"] - slack


class EvictingRow:
    """What one row of a group holds: true positions, in the order of slots.

    Args:
        attributes: of the group.
        slack: X, how far the row may go back.
    """

    def __init__(self, attributes: dict[str, Any], slack: int = SLACK) -> None:
        self.attributes, self.slack = attributes, slack
        self.held: list[int] = []
        self.length = 0

    def set_length(self, length: int) -> None:
        """Takes positions back, or adds new ones."""
        self.held = [*(p for p in self.held if p < length), *range(self.length, length)]
        self.length = length

    def draw(self, data: st.DataObject, state: dict[str, Array], row: int) -> Array:
        """Chooses what goes: whole blocks of each segment, at random; ``[held]`` slots."""
        from hypothesis import strategies as st  # other users of this file need it not

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
        first, end = protected(self.attributes, self.length, self.slack)
        positions = np.array(self.held, np.int64)
        may_go = (positions >= first) & (positions < end)
        if self.attributes["retention"] == "budget":
            may_go &= ~np.isin(positions, self.stored(state, row))
        width = schemas.segment_length(self.attributes) or max(self.length, 1)
        gone = np.zeros(len(positions), bool)
        for segment in range(-(-self.length // width)):
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
