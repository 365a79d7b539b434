"""A graph whose state lies on a GPU, bound once; nothing of it is copied between calls.

Each shape of call has a binding of its own, with inputs and logits at fixed addresses on the
device: a decode step is then the same work at the same places every time, which ONNX Runtime can
record once and replay (a CUDA graph).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.runtime.cache import Cache
from minicache.runtime.eviction.slot_move import SlotMove
from minicache.runtime.model import copy_failed, no_room
from minicache.runtime.ort import CUDA, first_line, load_onnxruntime
from minicache.runtime.ort_model import OrtModel
from minicache.runtime.used_slots import slots_by_head

_DEVICE = "cuda", 0
_GRAPH_ID = "gpu_graph_id"  # of a run: which recording it is; -1: none


@dataclass(frozen=True)
class _Call:
    """The binding of one shape of call, and what it keeps alive."""

    binding: Any
    first: int
    inputs: dict[str, Any]
    logits: Any
    options: Any


class DeviceModel(OrtModel):
    """Runs a graph; the kernels update the state in place, on the device.

    The cache's arrays are what the host saw last: ``pull`` brings them up to date.

    Args:
        graph: an ``onnxruntime.InferenceSession`` on CUDA.
        cache: shapes and types of the state.
        path: of the graph, for messages.

    Raises:
        PackageError: graph and manifest do not belong together.
        SessionError: the state does not fit onto the device.
    """

    def __init__(self, graph: Any, cache: Cache, path: Path) -> None:
        super().__init__(graph, cache, path)
        self._onnxruntime = load_onnxruntime()
        options = graph.get_provider_options().get(CUDA, {})
        self._records = options.get("enable_cuda_graph") == "1"
        self._states = {
            past: self._on_device(array.shape, self.element_type(past))
            for past, array in cache.arrays.items()
        }
        self._window = graph.io_binding()
        self.push(slice(0, cache.batch_size), cache.marks)
        self._decode: dict[tuple[int, ...], _Call] = {}
        self._other: dict[tuple[int, ...], _Call] = {}  # the last shape: prefill repeats one
        self._last: _Call | None = None

    def _on_device(self, shape: tuple[int, ...], kind: Any) -> Any:
        try:
            values = self._onnxruntime.OrtValue
            return values.ortvalue_from_shape_and_type(list(shape), kind, *_DEVICE)
        except Exception as error:  # ONNX Runtime raises several unrelated classes
            raise no_room(shape, first_line(error)) from error

    def needs_all_rows(self, tokens: int) -> bool:
        """Whether the call is one that is recorded: at fixed addresses; see ``Model``."""
        return self._records and tokens == 1

    def push(self, rows: slice, states: Collection[str] | None = None) -> None:
        """Copies rows of the cache's arrays to the device; see ``Model``."""
        for past in self._states if states is None else states:
            self._write(past, self._address(past, rows.start), self._cache.arrays[past][rows])

    def pull(self, rows: slice, states: Collection[str] | None = None) -> None:
        """Copies rows of the state to the cache's arrays; see ``Model``."""
        for past in self._states if states is None else states:
            array = self._cache.arrays[past][rows]
            array[...] = self._read(past, self._address(past, rows.start), array.shape)

    def move_slots(self, past: str, row: int, move: SlotMove) -> None:
        """Moves slots on their way through the host, head by head; see ``Model``.

        ONNX Runtime copies between host and device, and before version 1.23 nothing on a device.
        """
        name = self._cache.states[past].name
        heads = slots_by_head(name, self._cache.arrays[past][row])
        first, end = int(move.target[0]), int(move.source[-1]) + 1
        head_bytes, slot_bytes = heads[0].nbytes, heads[0, 0].nbytes
        for head in range(len(heads)):
            begin = self._address(past, row) + head * head_bytes + first * slot_bytes
            array = self._read(past, begin, heads[head, first:end].shape)
            self._write(past, begin, array[move.source - first])

    def _read(self, past: str, address: int, shape: Sequence[int]) -> npt.NDArray[Any]:
        """A copy of some of a state that lies together on the device."""
        try:
            array: npt.NDArray[Any] = self._part(past, address, shape).numpy()
        except Exception as error:  # ONNX Runtime raises several unrelated classes
            raise copy_failed("onnxruntime", first_line(error)) from error
        return array

    def _write(self, past: str, address: int, array: npt.NDArray[Any]) -> None:
        try:
            self._part(past, address, array.shape).update_inplace(array)
        except Exception as error:  # likewise
            raise copy_failed("onnxruntime", first_line(error)) from error

    def _part(self, past: str, address: int, shape: Sequence[int]) -> Any:
        """A value over a part of a state, until the next one is asked for.

        A value that owns memory is copied as a whole. One over an address, which only a binding
        makes, is as large as is said; bfloat16 goes as its bits. The binding is never run.
        """
        kind = self._cache.arrays[past].dtype
        name = self._cache.states[past].present
        self._window.clear_binding_outputs()
        self._window.bind_output(name, *_DEVICE, kind, list(shape), address)
        return self._window.get_outputs()[0]

    def release(self, rows: slice) -> None:
        """Nothing: the device keeps the memory for the next text."""

    def release_slots(self, group: int, row: int, first: int) -> None:
        """Nothing, likewise."""

    def run(
        self,
        control: dict[str, npt.NDArray[Any]],
        logits: npt.NDArray[np.float32] | None,
        shape: tuple[int, ...],
        first: int = 0,
    ) -> None:
        """Runs the graph once; see ``Model``."""
        self._last = call = self._call_of(control, shape, first)
        for name, array in control.items():
            call.inputs[name].update_inplace(np.ascontiguousarray(array))
        self.run_bound(call.binding, call.options)
        if logits is not None:
            logits[...] = call.logits.numpy()

    def _call_of(
        self, control: dict[str, npt.NDArray[Any]], shape: tuple[int, ...], first: int
    ) -> _Call:
        tokens = control["input_ids"].shape
        key, known = (first, *tokens, *shape), self._decode if tokens[1] == 1 else self._other
        if key not in known:
            known.clear()
            known[key] = self._bind(control, shape, first, decode=tokens[1] == 1)
        return known[key]

    def _bind(
        self,
        control: dict[str, npt.NDArray[Any]],
        shape: tuple[int, ...],
        first: int,
        *,
        decode: bool,
    ) -> _Call:
        binding = self._graph.io_binding()
        inputs = {name: self._on_device(x.shape, x.dtype) for name, x in control.items()}
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value)
        for past in self._states:
            place = self._place(past, first, shape[0])
            binding.bind_input(past, *place)
            binding.bind_output(self._cache.states[past].present, *place)
        logits = self._on_device(shape, self._logits_dtype)
        binding.bind_ortvalue_output("logits", logits)
        options = self._onnxruntime.RunOptions()
        if self._records:
            options.add_run_config_entry(_GRAPH_ID, "1" if decode else "-1")
        return _Call(binding, first, inputs, logits, options)

    def _place(self, past: str, first: int, rows: int) -> tuple[Any, ...]:
        """Device, type, shape and address of some rows of a state, as IOBinding takes them."""
        array = self._cache.arrays[past]
        address = self._address(past, first)
        return *_DEVICE, self.element_type(past), [rows, *array.shape[1:]], address

    def _address(self, past: str, first: int) -> int:
        array = self._cache.arrays[past]
        return int(self._states[past].data_ptr()) + first * (array.nbytes // len(array))

    def state_pointers(self) -> dict[str, tuple[int, int]]:
        """Addresses of the state in the last run, and of its output; equal in place."""
        if self._last is None:
            return {past: (self._address(past, 0),) * 2 for past in self._states}
        addresses = {past: self._address(past, self._last.first) for past in self._states}
        return self.pointers(addresses, self._last.binding)
