"""Closes the gaps that evicted tokens leave in a row: every state of a group, in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import numpy.typing as npt

from minicache.runtime.cache import CODED, EXACT
from minicache.runtime.eviction.slot_move import Array, SlotMove, Slots
from minicache.runtime.used_slots import slots_by_head


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


def slot_states(group: Iterable[str]) -> list[str]:
    """The states of a group whose slots hold the tokens that may go, by their names in the schema.

    Args:
        group: names of all of the group's states.
    """
    coded = "key_code" in group
    return [name for name in group if name in (*(CODED if coded else EXACT), "attention_mass")]


def compact_row(
    group: Mapping[str, Array],
    row: int,
    gone: npt.NDArray[np.bool_],
    *,
    length: int,
    tiled: bool,
    move: Callable[[str, SlotMove], None] | None = None,
) -> None:
    """Evicts tokens of one row of a group.

    Args:
        group: the group's buffers by their names in the op's schema.
        row: batch row.
        gone: [tokens that the row holds], which slots are evicted: of codes, no sinks, and, so that
            going back stays exact, none of the last W + X.
        length: L of the group's segments; 0: one.
        tiled: whether codes lie in tiles.
        move: moves slots of the row in one of ``slot_states``; None: in the buffers. The tables by
            position, ``evicted`` and ``retained_position``, are always those of the buffers.
    """
    if not gone.any():
        return
    moved = SlotMove.closing(gone, tiled=tiled)
    for name in slot_states(group):
        if not moved.source.size:
            break
        if move is None:
            moved.apply(name, slots_by_head(name, group[name][row]))
        else:
            move(name, moved)
    table = group["evicted"][row]
    before, below = table.copy(), np.concatenate([[0], np.cumsum(gone)])
    starts = np.minimum(segment_starts(table, length), gone.size)
    table[:-1] += below[np.maximum(starts, 0)].astype(table.dtype)
    table[-1] += below[-1]
    if "retained_position" in group:
        _renumber(group["retained_position"][row], before, table, gone, length)


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
