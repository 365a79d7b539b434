"""Closes the gaps that evicted tokens leave in a row: every state of a group, in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Slots = npt.NDArray[np.int64]
KEY_TILE, WORD, VALUE_TILE = 16, 4, 4  # docs/operator.md, `tile`
_CODES = ("key_code", "value_code", "key_delta", "value_delta")  # in rows or tiles
_NUMBERS = ("key_magnitude", "value_magnitude", "key_delta_ratio", "value_delta_ratio")


def segment_starts(table: Array, length: int) -> Slots:
    """First slot [n] of each segment of a row.

    Args:
        table: [n + 1], the row's part of the state ``evicted``.
        length: L; 0: one segment.
    """
    return np.arange(len(table) - 1) * length - table[:-1].astype(np.int64)


def segments_of(table: Array, length: int, count: int) -> Slots:
    """Segment [count] of the token in each slot."""
    starts = segment_starts(table, length)
    return np.searchsorted(starts, np.arange(count), side="right") - 1


def retained_slots(position: Array, table: Array, length: int) -> Slots:
    """Slots of the tokens in a row's side buffer [P], free places left out."""
    at = position[position >= 0].astype(np.int64)
    return at - table[_segment(at, length) + 1]


def _segment(position: Slots, length: int) -> Slots:
    return position // length if length else np.zeros_like(position)


def compact_row(
    group: Mapping[str, Array],
    row: int,
    gone: npt.NDArray[np.bool_],
    *,
    length: int,
    tiled: bool,
) -> None:
    """Evicts tokens of one row of a group.

    Args:
        group: the group's buffers by their names in the op's schema.
        row: batch row.
        gone: [tokens that the row holds], which slots are evicted: of codes, no sinks, and, so that
            going back stays exact, none of the last W + X.
        length: L of the group's segments; 0: one.
        tiled: whether codes lie in tiles.
    """
    left = np.flatnonzero(~gone)
    if left.size == gone.size:
        return
    first = int(np.argmax(gone))
    source = left[first:]  # slots below the first gap stay where they are
    target = np.arange(first, left.size)
    for name in _CODES:
        if name in group:
            move = _move_tiles if tiled else _move_slots
            move(group[name][row], source, target, name.startswith("key"))
    for name in _NUMBERS:
        if name in group:
            _move_slots(group[name][row], source, target)
    if "key_code" not in group:
        for name in ("exact_key", "exact_value"):
            for layer in group[name][row]:
                _move_slots(layer, source, target)
    if "attention_mass" in group:
        mass = group["attention_mass"][row]
        mass[target] = mass[source]
    table = group["evicted"][row]
    before, below = table.copy(), np.concatenate([[0], np.cumsum(gone)])
    starts = np.minimum(segment_starts(table, length), gone.size)
    table[:-1] += below[np.maximum(starts, 0)].astype(table.dtype)
    table[-1] += below[-1]
    if "retained_position" in group:
        _renumber(group["retained_position"][row], before, table, gone, length)


def _move_slots(array: Array, source: Slots, target: Slots, is_key: bool = False) -> None:
    """Moves slots of [heads, C, ...]; those of a head are copied before any of its is written."""
    for head in array:
        head[target] = head[source]


def _move_tiles(array: Array, source: Slots, target: Slots, is_key: bool) -> None:
    """Moves the codes of tokens within tiles; no token shares a byte with another."""
    capacity, size = array.shape[-2:]
    for head in array:
        if is_key:
            tiles = head.reshape(capacity // KEY_TILE, size // WORD, KEY_TILE, WORD)
            tile = KEY_TILE
        else:
            tiles = head.reshape(capacity // VALUE_TILE, size, VALUE_TILE)
            tile = VALUE_TILE
        tiles[target // tile, :, target % tile] = tiles[source // tile, :, source % tile]


def _renumber(
    position: Array, before: Array, after: Array, gone: npt.NDArray[np.bool_], length: int
) -> None:
    """Gives the retained tokens that are left their new positions, and frees the others' places.

    What is left of a segment counts as its last positions (docs/operator.md): a position is a slot
    plus what was evicted up to the segment's end.
    """
    held = np.flatnonzero(position >= 0)
    at = position[held].astype(np.int64)
    segment = _segment(at, length)
    slot = at - before[segment + 1]
    known = slot < gone.size  # later ones are left from a call that was taken back
    held, segment, slot = held[known], segment[known], slot[known]
    moved = slot - np.concatenate([[0], np.cumsum(gone)])[slot] + after[segment + 1]
    position[held] = np.where(gone[slot], -1, moved)
