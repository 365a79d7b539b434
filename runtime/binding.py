"""A graph whose state inputs and outputs are bound, once, to the same memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.runtime.cache import Cache
from minicache.runtime.ort import load_onnxruntime
from minicache.runtime.ort_model import OrtModel


class BoundModel(OrtModel):
    """Runs a graph; the kernels update the cache's buffers in place.

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
        # Another provider may take its copy of an input when the input is bound, not when it runs.
        self._reads_host = graph.get_providers() == ["CPUExecutionProvider"]
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
        array, kind = self._cache.arrays[past], self.element_type(past)
        if isinstance(kind, int):
            return self._values_of.ortvalue_from_numpy_with_onnx_type(array, kind)
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
        """Runs the graph once; see ``Model``."""
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
        self.run_bound(self._binding)
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
        return self.pointers(self._values, self._binding)
