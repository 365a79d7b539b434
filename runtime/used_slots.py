"""Which part of a row's state its tokens take up."""

from __future__ import annotations

import math
from typing import Any

import numpy.typing as npt

from minicache.exporter.schemas import CAPACITY_MULTIPLE
from minicache.runtime.manifest import StateTensor

# Which dimension of a state [B, ...] counts tokens or slots. Others are kept whole.
_SLOT_AXES = {
    "key_code": 2,
    "value_code": 2,
    "key_magnitude": 2,
    "value_magnitude": 2,
    "key_delta": 2,
    "value_delta": 2,
    "key_delta_ratio": 2,
    "value_delta_ratio": 2,
    "exact_key": 3,
    "exact_value": 3,
    "attention_mass": 1,
}
RETAINED_AXES = {
    "retained_key": 3,
    "retained_value": 3,
    "retained_position": 1,
    "retained_similarity": 1,
}


def slots_by_head(name: str, row: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A row of a state with its slots as the second dimension: [heads, slots, ...], a view.

    Heads of all layers count; a state without heads has one.

    Args:
        name: of a state whose slots hold tokens, in the op's schema.
        row: the state without its batch dimension.
    """
    return row.reshape(-1, *row.shape[_SLOT_AXES[name] - 1 :])


def used_slots(
    state: StateTensor, shape: tuple[int, ...], length: int, window: int
) -> tuple[int, int]:
    """The slots of a state that may hold something of a row's tokens; they are its first ones.

    Codes end where the exact window begins, and are counted in whole tiles. A ring of exact slots
    is used from its first slot on, until it is full.

    Args:
        state: what the manifest says about it.
        shape: its dimensions, symbols resolved.
        length: tokens of the row, without evicted ones.
        window: recent tokens W that stay exact where others are coded.

    Returns:
        The dimension that counts slots, and how many are used; dimension 0, and 1 or 0, of a state
        that is used as a whole or not at all.
    """
    axis = _SLOT_AXES.get(state.name)
    if axis is None:
        return 0, int(length > 0)
    if state.name.startswith("exact_") or state.name == "attention_mass":
        return axis, min(length, shape[axis])
    tiles = -(-max(length - window, 0) // CAPACITY_MULTIPLE)
    return axis, min(tiles * CAPACITY_MULTIPLE, shape[axis])


def used_elements(state: StateTensor, shape: tuple[int, ...], length: int, window: int) -> int:
    """Elements of one row of a state that its tokens take up; see ``used_slots``."""
    axis, slots = used_slots(state, shape, length, window)
    row = shape[1:]
    if axis == 0:
        return slots * math.prod(row)
    return slots * (math.prod(row) // shape[axis])
