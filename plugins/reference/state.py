"""The state of a group, and where in it a token lies.

A state is a dictionary of arrays named as in ``minicache.exporter.schemas.STATES``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.exporter import schemas
from minicache.plugins.reference.code import row_to_tile, tile_to_row
from minicache.plugins.reference.eviction import slot_map
from minicache.plugins.reference.primitives import Array
from minicache.plugins.reference.retention import FREE

MAGNITUDE_LIMIT = 65504.0  # the largest fp16
Attributes = Mapping[str, Any]
State = dict[str, Array]


def state_dtype(name: str, exact_dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Element type of one state tensor, given that of ``exact_*`` and ``retained_*``."""
    fixed = {"int8": np.int8, "fp16": np.float16, "int32": np.int32, "fp32": np.float32}
    kind = {state.name: state.dtype for state in schemas.STATES}[name]
    return np.dtype(fixed.get(kind, exact_dtype))


def new_state(
    attributes: Attributes,
    batch: int,
    capacity: int,
    retained: int = 0,
    exact_dtype: npt.DTypeLike = np.float16,
    segments: int = 1,
) -> State:
    """Returns the state of an empty cache.

    Args:
        attributes: of any node of the group; defaults are filled in.
        batch: B.
        capacity: C, a multiple of 16 for codes.
        retained: M, where the group retains.
        exact_dtype: type of ``exact_*`` and ``retained_*``: the model's in ``exact`` mode.
        segments: n of the longest text, where the group evicts and keys are coded in segments.

    Returns:
        One array per ``schemas.state_names``: zeros, and ``retained_position`` -1.
    """
    full = schemas.attributes_with_defaults(attributes)
    slots = retained + schemas.retained_extra(full)
    state = {}
    for name in schemas.state_names(full):
        shape = schemas.state_shape(name, full, batch, capacity, slots, segments)
        state[name] = np.zeros(shape, state_dtype(name, exact_dtype))
    if "retained_position" in state:
        state["retained_position"][:] = FREE
    return state


@dataclass(frozen=True)
class Span:
    """One batch row of one call: its lengths, and the borders that follow from them.

    Positions [sinks, c0) are read as codes, ``encoded`` ones are written as codes.
    """

    past: int
    total: int
    sinks: int
    window: int

    @property
    def new(self) -> int:
        """Valid new tokens."""
        return self.total - self.past

    @property
    def c0(self) -> int:
        """End of the codes before the call."""
        return min(max(self.sinks, self.past - self.window), self.past)

    @property
    def c1(self) -> int:
        """End of the codes after the call."""
        return min(max(self.sinks, self.total - self.window), self.total)

    @property
    def encoded(self) -> tuple[int, int]:
        """Positions that this call encodes: sinks never are, also when the call brings them."""
        first = max(self.c0, self.sinks)
        return first, max(self.c1, first)


def exact_slot(attributes: Attributes, state: State, row: int, positions: Array) -> Array:
    """Slot of a row's ``exact_key`` and ``exact_value`` in which each position lies."""
    if attributes["mode"] == "exact":
        if attributes["local_window_size"]:
            return np.asarray(positions % state["exact_key"].shape[3])
        return slot_map(attributes, state, row).slots(positions)
    sinks, ring = attributes["sinks"], attributes["ring_slots"]
    return np.where(positions < sinks, positions, sinks + (positions - sinks) % ring)


def head_order(attributes: Attributes, kind: str) -> Array:
    """``[G, Hk]``: the head of layer g that joins code head h; ``kind`` is ``key`` or ``value``."""
    shape = attributes["group_size"], attributes["kv_num_heads"]
    given = attributes[f"{kind}_head_permutation"]
    if not given:
        return np.broadcast_to(np.arange(shape[1]), shape)
    return np.asarray(given, np.int64).reshape(shape)


def code_rows(
    attributes: Attributes, state: State, kind: str, row: int, what: str = "code"
) -> Array:
    """``[Hc, C, bytes]`` int8: one batch row's codes, or ``delta``, in the ``row`` layout."""
    codes: Array = state[f"{kind}_{what}"][row]
    return tile_to_row(codes, kind) if attributes["code_layout"] == "tile" else codes


def store_rows(
    attributes: Attributes, state: State, kind: str, row: int, slots: Array, rows: Array,
    what: str = "code",
) -> None:  # fmt: skip
    """Puts codes, or ``delta``, ``[Hc, tokens, bytes]`` of the ``row`` layout into their slots."""
    all_rows = code_rows(attributes, state, kind, row, what).copy()
    all_rows[:, slots] = rows
    tiled = attributes["code_layout"] == "tile"
    state[f"{kind}_{what}"][row] = row_to_tile(all_rows, kind) if tiled else all_rows


def coded_positions(attributes: Attributes, state: State, row: int, end: int) -> Array:
    """Positions below ``end`` whose codes a row holds, ascending; evicted ones are not there."""
    positions = np.arange(attributes["sinks"], max(end, attributes["sinks"]))
    left: Array = positions[slot_map(attributes, state, row).is_left(positions)]
    return left
