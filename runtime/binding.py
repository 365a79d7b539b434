"""A graph whose state inputs and outputs are bound, once, to the same memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.runtime.cache import Cache
from minicache.runtime.eviction.slot_move import SlotMove
from minicache.runtime.ort import load_onnxruntime
from minicache.runtime.ort_model import OrtModel
from minicache.runtime.row_binding import RowBinding
from minicache.runtime.used_slots import slots_by_head

_KEPT_BINDINGS = 32  # each row on its own, and the ranges that decode, of a few dozen rows


class BoundModel(OrtModel):
    """Runs a graph; the kernels update the cache's buffers in place.

    The state is batch-major: contiguous rows of it are contiguous memory, and a call on some of the
    rows is a call on that memory.

    Args:
        graph: an ``onnxruntime.InferenceSession``.
        cache: the buffers; ONNX Runtime uses their memory as it is.
        path: of the graph, for messages.

    Raises:
        PackageError: graph and manifest do not belong together.
    """

    def __init__(self, graph: Any, cache: Cache, path: Path) -> None:
        super().__init__(graph, cache, path)
        self._values_of = load_onnxruntime().OrtValue
        self._bindings: OrderedDict[tuple[int, int], RowBinding] = OrderedDict()
        self._last = self._rows(0, cache.batch_size)
        self._scratch = np.empty(0, self._logits_dtype)

    def _rows(self, first: int, end: int) -> RowBinding:
        """The binding of rows [first, end); the ones used longest ago are made anew."""
        known = self._bindings.get((first, end))
        if known is None:
            if len(self._bindings) >= _KEPT_BINDINGS:
                self._bindings.popitem(last=False)
            cache = self._cache
            values = {
                past: self._state_value(past, array[first:end])
                for past, array in cache.arrays.items()
            }
            presents = {past: state.present for past, state in cache.states.items()}
            value_of = self._values_of.ortvalue_from_numpy
            known = self._bindings[first, end] = RowBinding(self._graph, values, presents, value_of)
        self._bindings.move_to_end((first, end))
        return known

    def _state_value(self, past: str, array: npt.NDArray[Any]) -> Any:
        kind = self.element_type(past)
        if isinstance(kind, int):
            return self._values_of.ortvalue_from_numpy_with_onnx_type(array, kind)
        return self._values_of.ortvalue_from_numpy(array)

    def needs_all_rows(self, tokens: int) -> bool:
        """Never: any rows can be bound; see ``Model``."""
        return False

    def push(self, rows: slice, states: Collection[str] | None = None) -> None:
        """Nothing: the kernels read the cache's arrays themselves."""

    def pull(self, rows: slice, states: Collection[str] | None = None) -> None:
        """Nothing, likewise."""

    def move_slots(self, past: str, row: int, move: SlotMove) -> None:
        """Moves slots in the cache's arrays."""
        name = self._cache.states[past].name
        move.apply(name, slots_by_head(name, self._cache.arrays[past][row]))

    def release(self, rows: slice) -> None:
        """Gives the rows' memory back to the system."""
        self._cache.release(rows)

    def release_slots(self, group: int, row: int, first: int) -> None:
        """Gives memory of the row back to the system; see ``Model``."""
        self._cache.release_slots(group, row, first)

    def run(
        self,
        control: dict[str, npt.NDArray[Any]],
        logits: npt.NDArray[np.float32] | None,
        shape: tuple[int, ...],
        first: int = 0,
    ) -> None:
        """Runs the graph once; see ``Model``."""
        self._last = rows = self._rows(first, first + shape[0])
        for name, array in control.items():
            rows.bind_control(name, array)
        # fp32 logits go straight into the caller's array, others through a scratch.
        target: npt.NDArray[Any] | None = logits
        if target is None or target.dtype != self._logits_dtype:
            if self._scratch.shape != shape:
                self._scratch = np.empty(shape, self._logits_dtype)
            target = self._scratch
        rows.bind_logits(target)
        self.run_bound(rows.binding)
        if logits is not None and target is not logits:
            logits[...] = target

    def state_pointers(self) -> dict[str, tuple[int, int]]:
        """Addresses of the state in the last run, and of its output; equal in place."""
        addresses = {past: value.data_ptr() for past, value in self._last.values.items()}
        return self.pointers(addresses, self._last.binding)
