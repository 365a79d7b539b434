"""The cache of a session: the state buffers of all merge groups, allocated once.

Letters: B batch, C capacity, G layers of a group, Hk kv heads, D head size, M retained capacity.
"""

from __future__ import annotations

import math
from typing import Any

import numpy.typing as npt

from minicache.exporter.schemas import CAPACITY_MULTIPLE
from minicache.runtime.errors import PackageError, SessionError
from minicache.runtime.lazy_zeros import LazyZeros
from minicache.runtime.manifest import BATCH, CAPACITY, Manifest, StateTensor

# NumPy has no bfloat16 of its own; the buffers hold its bits.
STORAGE = {"bfloat16": "uint16"}
CODED = tuple(
    f"{kind}_{part}"
    for kind in ("key", "value")
    for part in ("code", "magnitude", "delta", "delta_ratio")
)
EXACT = ("exact_key", "exact_value")
_EMPTY = {"retained_position": -1, "evicted": 0}  # what remembers tokens by position


def round_capacity(tokens: int) -> int:
    """Returns ``tokens`` rounded up to what the code layouts need (one key tile)."""
    return -(-tokens // CAPACITY_MULTIPLE) * CAPACITY_MULTIPLE


def retained_capacity(fraction: float, capacity: int) -> int:
    """Retained tokens M for a capacity C: the fraction, rounded up, at least one."""
    # 1e-9: 0.05 * 1000 must stay 50 whatever the binary fraction says.
    return max(1, math.ceil(fraction * capacity - 1e-9))


def resolve_shape(
    state: StateTensor, manifest: Manifest, batch_size: int, capacity: int
) -> tuple[int, ...]:
    """Gives numbers to the symbols of a state's shape.

    Raises:
        PackageError: the shape names a symbol that the manifest does not define.
    """
    shape: list[int] = []
    for size in state.shape:
        if isinstance(size, int):
            shape.append(size)
        elif size == BATCH:
            shape.append(batch_size)
        elif size == CAPACITY:
            shape.append(capacity)
        elif size in manifest.retained_fractions:
            most = retained_capacity(manifest.retained_fractions[size], capacity)
            shape.append(most + manifest.retained_extra.get(size, 0))
        else:
            raise PackageError(
                f"the manifest gives {state.past!r} the dimension {size!r}, which is neither a "
                f"number, {BATCH!r}, {CAPACITY!r} nor one of "
                f"{sorted(manifest.retained_fractions)}; export again"
            )
    return tuple(shape)


class Cache:
    """State buffers by graph input name; the kernels read and write them in place.

    Attributes:
        manifest: of the exported folder.
        batch_size: rows B.
        capacity: tokens C per row, a multiple of 16.
        states: what the manifest says about each buffer, by graph input name.
        arrays: the buffers, by graph input name.
    """

    def __init__(self, manifest: Manifest, batch_size: int, capacity: int) -> None:
        self.manifest = manifest
        self.batch_size = batch_size
        self.capacity = capacity
        self.states = {state.past: state for state in manifest.state}
        self.arrays: dict[str, npt.NDArray[Any]] = {}
        self._buffers: dict[str, LazyZeros] = {}
        for state in manifest.state:
            shape = resolve_shape(state, manifest, batch_size, capacity)
            self._buffers[state.past] = self._allocate(state, shape)
            self.arrays[state.past] = self._buffers[state.past].array
        self.clear(slice(0, batch_size))

    def _allocate(self, state: StateTensor, shape: tuple[int, ...]) -> LazyZeros:
        try:
            return LazyZeros(shape, STORAGE.get(state.dtype, state.dtype))
        except TypeError as error:
            raise PackageError(
                f"the manifest gives {state.past!r} the type {state.dtype!r}, which this version "
                f"does not know ({error}); export again"
            ) from error
        except (
            MemoryError,
            ValueError,
            OverflowError,
            OSError,
        ) as error:  # beyond any address, too
            raise SessionError(
                f"the cache of {self.batch_size} row(s) x {self.capacity} tokens does not fit into "
                f"memory (refused at {state.past!r}, shape {list(shape)}); "
                "give a smaller max_sequence_length or batch_size"
            ) from error

    def clear(self, rows: slice) -> None:
        """Empties rows.

        Codes and exact slots need no wiping: every slot is written again before a token of the new
        text is read from it. Only what remembers tokens by position is set back.
        """
        for past, state in self.states.items():
            if state.name in _EMPTY:
                self.arrays[past][rows] = _EMPTY[state.name]

    def release(self, rows: slice) -> None:
        """Gives the memory of rows back to the system; ``clear`` makes them empty ones."""
        for buffer in self._buffers.values():
            buffer.release(rows)

    def release_slots(self, group: int, row: int, first: int) -> None:
        """Gives memory of a group's codes (or, without codes, exact slots) from ``first`` on back.

        Args:
            group: number of the merge group.
            row: whose slots.
            first: slots below it may hold tokens.
        """
        coded = any(state.group == group and state.name in CODED for state in self.states.values())
        for past, state in self.states.items():
            shape = self.arrays[past].shape
            if state.group != group or state.name not in (CODED if coded else EXACT):
                continue
            axis = shape.index(self.capacity, 2)
            slot = math.prod(shape[axis + 1 :])
            heads = math.prod(shape[1:axis])
            for head in range(row * heads, (row + 1) * heads):
                start, end = head * self.capacity + first, (head + 1) * self.capacity
                self._buffers[past].release_elements(start * slot, end * slot)

    def close(self) -> None:
        """Lets go of the buffers; they are freed with the last view of them."""
        self.arrays.clear()
        self._buffers.clear()

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(array.nbytes for array in self.arrays.values())

    @property
    def marks(self) -> list[str]:
        """The states that ``clear`` sets back, by graph input name."""
        return [past for past, state in self.states.items() if state.name in _EMPTY]

    def views(self) -> dict[str, npt.NDArray[Any]]:
        """Read-only views of the buffers (no copies), by graph input name."""
        views = {past: array.view() for past, array in self.arrays.items()}
        for view in views.values():
            view.flags.writeable = False
        return views

    def group(self, group: int) -> dict[str, npt.NDArray[Any]]:
        """The buffers of one merge group, by their names in the op's schema."""
        return {
            state.name: self.arrays[past]
            for past, state in self.states.items()
            if state.group == group
        }

    @property
    def groups(self) -> list[int]:
        """Numbers of the merge groups, ascending."""
        return sorted({state.group for state in self.states.values()})
