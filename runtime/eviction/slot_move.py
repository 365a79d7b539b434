"""Where the tokens of a row go when others are evicted: the gaps close, the order stays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Slots = npt.NDArray[np.int64]
KEY_TILE, WORD, VALUE_TILE = 16, 4, 4  # docs/operator.md, `tile`
_CODES = ("key_code", "value_code", "key_delta", "value_delta")  # in rows or tiles


@dataclass(frozen=True)
class SlotMove:
    """Slots that move, and where to; slots below the first gap stay where they are.

    Attributes:
        source: [n] slots, ascending.
        target: [n] slots, consecutive ones.
        tiled: whether codes lie in tiles, as on CPUs.
    """

    source: Slots
    target: Slots
    tiled: bool

    @classmethod
    def closing(cls, gone: npt.NDArray[np.bool_], *, tiled: bool) -> SlotMove:
        """Closes the gaps that evicted tokens leave.

        Args:
            gone: [tokens that the row holds], which slots are evicted; at least one.
            tiled: whether codes lie in tiles.
        """
        left, first = np.flatnonzero(~gone), int(np.argmax(gone))
        return cls(left[first:], np.arange(first, left.size), tiled)

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Of each run of consecutive slots: its first one, where that goes, how many there are."""
        ends = np.flatnonzero(np.diff(self.source) != 1) + 1
        for run in np.split(np.arange(self.source.size), ends):
            if run.size:
                yield int(self.source[run[0]]), int(self.target[run[0]]), int(run.size)

    def apply(self, name: str, heads: Array) -> None:
        """Moves slots in the host's memory; those of a head are copied before any is written.

        Args:
            name: of the state.
            heads: [heads, slots, ...], one row of it.
        """
        move = self._in_tiles if self.tiled and name in _CODES else self._in_rows
        for head in heads:
            move(head, name)

    def _in_rows(self, head: Array, name: str) -> None:
        head[self.target] = head[self.source]

    def _in_tiles(self, head: Array, name: str) -> None:
        """No token shares a byte with another."""
        slots, size = head.shape
        tiles: Array
        if name.startswith("key"):
            tiles, tile = head.reshape(slots // KEY_TILE, size // WORD, KEY_TILE, WORD), KEY_TILE
        else:
            tiles, tile = head.reshape(slots // VALUE_TILE, size, VALUE_TILE), VALUE_TILE
        source, target = self.source, self.target
        tiles[target // tile, :, target % tile] = tiles[source // tile, :, source % tile]
