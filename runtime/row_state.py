"""What one row of a cache holds, apart from the row and from the size of its cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.runtime.cache import Cache
from minicache.runtime.errors import StateFileError
from minicache.runtime.manifest import StateTensor
from minicache.runtime.used_slots import RETAINED_AXES, used_slots

_FREE = -1  # a slot of ``retained_position`` that holds nothing


@dataclass(frozen=True)
class RowState:
    """A prefix: the tokens of one row, as the cache keeps them. It is a copy, and never changes.

    Attributes:
        model: digest of the model that computed it.
        length: tokens n.
        furthest: tokens that the row held at its longest; rewinding counts from there.
        token_ids: int32 [n], or None where they are not known.
        tensors: the used slots of each state, without the batch dimension, by graph input name.
    """

    model: str
    length: int
    furthest: int
    token_ids: npt.NDArray[np.int32] | None
    tensors: dict[str, npt.NDArray[Any]]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(array.nbytes for array in self.tensors.values())


def read_row(cache: Cache, row: int, length: int, window: int) -> dict[str, npt.NDArray[Any]]:
    """Copies what ``length`` tokens of a row take up; see ``RowState.tensors``.

    Args:
        cache: up to date.
        row: of it.
        length: tokens.
        window: recent tokens W that stay exact.
    """
    copies = {}
    for past, array in cache.arrays.items():
        state = cache.states[past]
        axis, slots = used_slots(state, array.shape, length - _evicted(cache, row, state), window)
        if state.name in RETAINED_AXES:
            held = np.flatnonzero(_positions(cache, state.group)[row] != _FREE)
            axis, slots = RETAINED_AXES[state.name], int(held[-1]) + 1 if len(held) else 0
        if axis == 0:
            copies[past] = array[row].copy() if slots else np.zeros_like(array[row])
        else:
            copies[past] = _first(array[row], axis - 1, slots).copy()
    return copies


def check_row(cache: Cache, state: RowState, window: int) -> dict[str, npt.NDArray[Any]]:
    """Returns the tensors of a state as they go into a row of ``cache``.

    They are those of the state, except that retained tokens move together where the row has fewer
    places for them.

    Raises:
        StateFileError: a tensor is missing, of another shape or type, or has no room.
    """
    if set(state.tensors) != set(cache.arrays):
        wrong = sorted(set(state.tensors) ^ set(cache.arrays))[0]
        raise StateFileError(f"the state and this model do not both have {wrong!r}; {_AGAIN}")
    kept = {
        cache.states[past].group: _kept_slots(array, cache.arrays[past].shape[1], state)
        for past, array in state.tensors.items()
        if cache.states[past].name == "retained_position"
    }
    gone = {
        cache.states[past].group: _checked_total(array, cache.arrays[past].shape[1], state.length)
        for past, array in state.tensors.items()
        if cache.states[past].name == "evicted"
    }
    fitting = {}
    for past, array in state.tensors.items():
        own, info = cache.arrays[past], cache.states[past]
        left = state.length - gone.get(info.group, 0)
        axis, slots = used_slots(info, own.shape, left, window)
        if info.name in RETAINED_AXES and array.ndim == own.ndim - 1:
            axis = RETAINED_AXES[info.name]
            array = np.take(array, kept[info.group], axis - 1)
            slots = len(kept[info.group])
        wanted = own.shape[1:] if axis == 0 else _first(own[0], axis - 1, slots).shape
        if array.shape != wanted or array.dtype != own.dtype:
            raise StateFileError(
                f"{past!r} of the state is {array.dtype} {list(array.shape)}, this model has "
                f"{own.dtype} {list(wanted)} for {state.length} tokens; {_AGAIN}"
            )
        fitting[past] = array
    return fitting


def write_row(cache: Cache, row: int, tensors: dict[str, npt.NDArray[Any]]) -> None:
    """Puts what ``check_row`` returned into a row; other slots are never read before written."""
    cache.clear(slice(row, row + 1))
    for past, array in tensors.items():
        target = cache.arrays[past][row]
        target[tuple(slice(size) for size in array.shape)] = array


_AGAIN = "save it again with this model"


def _kept_slots(position: npt.NDArray[Any], places: int, state: RowState) -> npt.NDArray[np.intp]:
    """Slots of the saved side buffer that go into ``places`` slots, in their order."""
    if position.ndim != 1 or not np.issubdtype(position.dtype, np.integer):
        raise StateFileError(f"the positions of retained tokens are no list of numbers; {_AGAIN}")
    if (position < _FREE).any() or (position >= state.furthest).any():
        raise StateFileError(f"a retained token has a position that cannot be; {_AGAIN}")
    if len(position) <= places:
        return np.arange(len(position))
    held = np.flatnonzero((position != _FREE) & (position < state.length))
    if len(held) > places:
        raise StateFileError(
            f"the state keeps {len(held)} tokens in full, a row of this session has places for "
            f"{places}; open the session with a larger max_sequence_length"
        )
    return held


def _evicted(cache: Cache, row: int, state: StateTensor) -> int:
    """Tokens that are evicted from a row of the group that a state is of."""
    table = cache.group(state.group).get("evicted")
    return 0 if table is None else int(table[row, -1])


def _checked_total(table: npt.NDArray[Any], entries: int, length: int) -> int:
    """Tokens that a saved row has evicted from one group."""
    whole = table.shape == (entries,) and np.issubdtype(table.dtype, np.integer)
    if not whole or table[0] != 0 or (np.diff(table) < 0).any() or table[-1] > length:
        raise StateFileError(f"the counts of evicted tokens cannot be; {_AGAIN}")
    return int(table[-1])


def _first(array: npt.NDArray[Any], axis: int, slots: int) -> npt.NDArray[Any]:
    return array[(slice(None),) * axis + (slice(slots),)]


def _positions(cache: Cache, group: int) -> npt.NDArray[Any]:
    return cache.group(group)["retained_position"]
