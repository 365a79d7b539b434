"""A graph whose state lies on a GPU, bound once; nothing of it is copied between calls.

Each shape of call has a binding of its own, with inputs and logits at fixed addresses on the
device: a decode step is then the same work at the same places every time, which ONNX Runtime can
record once and replay (a CUDA graph).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.runtime.binding import check_names, logits_type
from minicache.runtime.cache import Cache
from minicache.runtime.errors import SessionError
from minicache.runtime.ort import CUDA, first_line, load_onnxruntime

_DEVICE = "cuda", 0
_GRAPH_ID = "gpu_graph_id"  # of a run: which recording it is; -1: none
_BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16


@dataclass(frozen=True)
class _Call:
    """The binding of one shape of call, and what it keeps alive."""

    binding: Any
    inputs: dict[str, Any]
    logits: Any
    options: Any


class DeviceModel:
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
        self._onnxruntime = load_onnxruntime()
        self._graph, self._cache = graph, cache
        check_names(graph, cache, path)
        self._logits_dtype = logits_type(graph, path)
        options = graph.get_provider_options().get(CUDA, {})
        self._records = options.get("enable_cuda_graph") == "1"
        self._states = {past: self._allocate(past) for past in cache.arrays}
        self.push()
        self._decode: dict[tuple[int, ...], _Call] = {}
        self._other: dict[tuple[int, ...], _Call] = {}  # the last shape: prefill repeats one

    def _allocate(self, past: str) -> Any:
        array, dtype = self._cache.arrays[past], self._cache.states[past].dtype
        kind: Any = _BFLOAT16 if dtype == "bfloat16" else array.dtype
        return self._on_device(array.shape, kind)

    def _on_device(self, shape: tuple[int, ...], kind: Any) -> Any:
        try:
            values = self._onnxruntime.OrtValue
            return values.ortvalue_from_shape_and_type(list(shape), kind, *_DEVICE)
        except Exception as error:  # ONNX Runtime raises several unrelated classes
            raise SessionError(
                f"{list(shape)} elements do not fit into GPU memory ({first_line(error)}); give a "
                "smaller max_sequence_length or batch_size"
            ) from error

    def push(self) -> None:
        """Brings to the device what an empty cache must hold; the rest is written before read."""
        for past, value in self._states.items():
            if self._cache.states[past].name == "retained_position":
                value.update_inplace(self._cache.arrays[past])

    def pull(self) -> None:
        """Copies the state to the cache's arrays, for inspection."""
        for past, value in self._states.items():
            array = self._cache.arrays[past]
            array[...] = value.numpy().view(array.dtype)

    def run(
        self,
        control: dict[str, npt.NDArray[Any]],
        logits: npt.NDArray[np.float32] | None,
        shape: tuple[int, ...],
    ) -> None:
        """Runs the graph once; as ``BoundModel.run``.

        Raises:
            SessionError: ONNX Runtime refused the call.
        """
        call = self._call_of(control, shape)
        for name, array in control.items():
            call.inputs[name].update_inplace(np.ascontiguousarray(array))
        try:
            self._graph.run_with_iobinding(call.binding, call.options)
        except Exception as error:
            raise SessionError(
                f"onnxruntime failed in this call ({first_line(error)}); the cache has not "
                "advanced, reset() before going on"
            ) from error
        if logits is not None:
            logits[...] = call.logits.numpy()

    def _call_of(self, control: dict[str, npt.NDArray[Any]], shape: tuple[int, ...]) -> _Call:
        tokens = control["input_ids"].shape
        key, known = (*tokens, *shape), self._decode if tokens[1] == 1 else self._other
        if key not in known:
            known.clear()
            known[key] = self._bind(control, shape, decode=tokens[1] == 1)
        return known[key]

    def _bind(
        self, control: dict[str, npt.NDArray[Any]], shape: tuple[int, ...], *, decode: bool
    ) -> _Call:
        binding = self._graph.io_binding()
        inputs = {name: self._on_device(x.shape, x.dtype) for name, x in control.items()}
        for name, value in (inputs | self._states).items():
            binding.bind_ortvalue_input(name, value)
        for past, value in self._states.items():
            binding.bind_ortvalue_output(self._cache.states[past].present, value)
        logits = self._on_device(shape, self._logits_dtype)
        binding.bind_ortvalue_output("logits", logits)
        options = self._onnxruntime.RunOptions()
        if self._records:
            options.add_run_config_entry(_GRAPH_ID, "1" if decode else "-1")
        return _Call(binding, inputs, logits, options)

    def state_pointers(self) -> dict[str, tuple[int, int]]:
        """Addresses of each state's buffer and of its output in the last run; equal in place."""
        calls = [*self._other.values(), *self._decode.values()]
        if not calls:
            return {past: (value.data_ptr(),) * 2 for past, value in self._states.items()}
        results = calls[-1].binding.get_outputs()[: len(self._states)]
        return {
            past: (value.data_ptr(), result.data_ptr())
            for (past, value), result in zip(self._states.items(), results, strict=True)
        }
