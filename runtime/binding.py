"""A graph whose state inputs and outputs are bound, once, to the same memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.runtime.cache import Cache
from minicache.runtime.errors import PackageError, SessionError
from minicache.runtime.manifest import StateTensor
from minicache.runtime.ort import first_line, load_onnxruntime

CONTROL_INPUTS = ("input_ids", "past_lengths", "total_lengths", "logit_positions")
_BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16
_ORT_TYPES = {"float32": "float", "float64": "double"}  # by NumPy's names, where they differ
_LOGITS = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


class BoundModel:
    """Runs a graph; the kernels update the cache's buffers in place.

    Args:
        graph: an ``onnxruntime.InferenceSession``.
        cache: the buffers; ONNX Runtime uses their memory as it is.
        path: of the graph, for messages.

    Raises:
        PackageError: graph and manifest do not belong together.
    """

    def __init__(self, graph: Any, cache: Cache, path: Path) -> None:
        self._values_of = load_onnxruntime().OrtValue
        self._graph, self._cache = graph, cache
        # Another provider may take its copy of an input when the input is bound, not when it runs.
        self._reads_host = graph.get_providers() == ["CPUExecutionProvider"]
        check_names(graph, cache, path)
        self._logits_dtype = logits_type(graph, path)
        self._binding = graph.io_binding()
        self._values = {past: self._state_value(past) for past in cache.arrays}
        for past, value in self._values.items():
            self._binding.bind_ortvalue_input(past, value)
            self._binding.bind_ortvalue_output(cache.states[past].present, value)
        # What the last call was bound to: ONNX Runtime keeps pointers, Python must keep the memory.
        self._control: dict[str, tuple[npt.NDArray[Any], Any]] = {}
        self._output: tuple[npt.NDArray[Any], Any] | None = None
        self._scratch = np.empty(0, self._logits_dtype)

    def _state_value(self, past: str) -> Any:
        array, dtype = self._cache.arrays[past], self._cache.states[past].dtype
        if dtype == "bfloat16":
            return self._values_of.ortvalue_from_numpy_with_onnx_type(array, _BFLOAT16)
        return self._values_of.ortvalue_from_numpy(array)

    def push(self) -> None:
        """Nothing: the kernels read the cache's arrays themselves."""

    def pull(self) -> None:
        """Nothing, likewise."""

    def run(
        self,
        control: dict[str, npt.NDArray[Any]],
        logits: npt.NDArray[np.float32] | None,
        shape: tuple[int, ...],
    ) -> None:
        """Runs the graph once.

        Args:
            control: the arrays named in ``CONTROL_INPUTS``.
            logits: [B, K, V] to fill, C-contiguous; None when nobody wants them.
            shape: B, K, V.

        Raises:
            SessionError: ONNX Runtime refused the call.
        """
        for name, array in control.items():
            self._bind_control(name, array)
        # fp32 logits go straight into the caller's array, others through a scratch.
        target: npt.NDArray[Any] | None = logits
        if target is None or target.dtype != self._logits_dtype:
            if self._scratch.shape != shape:
                self._scratch = np.empty(shape, self._logits_dtype)
            target = self._scratch
        if self._output is None or self._output[0] is not target:
            self._output = (target, self._values_of.ortvalue_from_numpy(target))
            self._binding.bind_ortvalue_output("logits", self._output[1])
        try:
            self._graph.run_with_iobinding(self._binding)
        except Exception as error:
            raise SessionError(
                f"onnxruntime failed in this call ({first_line(error)}); the cache has not "
                "advanced, reset() before going on"
            ) from error
        if logits is not None and target is not logits:
            logits[...] = target

    def _bind_control(self, name: str, array: npt.NDArray[Any]) -> None:
        known = self._control.get(name)
        if self._reads_host and known is not None and known[0].shape == array.shape:
            known[0][...] = array  # bound already: ONNX Runtime reads this memory
            return
        kept = array.copy()
        value = self._values_of.ortvalue_from_numpy(kept)
        self._control[name] = (kept, value)
        self._binding.bind_ortvalue_input(name, value)

    def state_pointers(self) -> dict[str, tuple[int, int]]:
        """Addresses of each state's buffer and of its output in the last run; equal in place."""
        # IOBinding returns outputs in the order in which they were first bound: states, logits.
        results = self._binding.get_outputs()[: len(self._values)]
        return {
            past: (value.data_ptr(), result.data_ptr())
            for (past, value), result in zip(self._values.items(), results, strict=True)
        }


def logits_type(graph: Any, path: Path) -> np.dtype[Any]:
    """NumPy's type of a graph's logits.

    Raises:
        PackageError: another one than the runtime reads.
    """
    kind = {output.name: output.type for output in graph.get_outputs()}["logits"]
    if kind not in _LOGITS:
        raise PackageError(
            f"the logits of {str(path)!r} are {kind}, not fp32 or fp16; export again"
        )
    return np.dtype(_LOGITS[kind])


def check_names(graph: Any, cache: Cache, path: Path) -> None:
    """Checks that a graph has the inputs and outputs that its manifest declares.

    Raises:
        PackageError: one is missing, or the graph wants one that the manifest does not know.
    """
    inputs = {item.name for item in graph.get_inputs()}
    outputs = {item.name for item in graph.get_outputs()}
    expected = [*CONTROL_INPUTS, *cache.states]
    presents = [state.present for state in cache.states.values()]
    missing = [name for name in expected if name not in inputs]
    missing += [name for name in ("logits", *presents) if name not in outputs]
    unknown = sorted(inputs - set(expected))
    if missing or unknown:
        found = f"lacks {missing[0]!r}" if missing else f"also wants {unknown[0]!r}"
        raise PackageError(
            f"{str(path)!r} {found}: it and its manifest do not belong together; export again"
        )
    for item in graph.get_inputs():
        if item.name in cache.states:
            _check_state(item, cache.states[item.name], cache.arrays[item.name].shape, path)


def _check_state(item: Any, state: StateTensor, shape: tuple[int, ...], path: Path) -> None:
    kind = _ORT_TYPES.get(state.dtype, state.dtype)
    fits = len(item.shape) == len(shape) and all(
        size == wanted for size, wanted in zip(shape, item.shape, strict=True)
        if isinstance(wanted, int)
    )  # fmt: skip
    if item.type != f"tensor({kind})" or not fits:
        raise PackageError(
            f"{str(path)!r} wants {item.name!r} as {item.type} {item.shape}, its manifest says "
            f"{state.dtype} {list(state.shape)}: they do not belong together; export again"
        )
