"""Some rows of a graph's state, bound once: inputs and outputs to the same memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt


class RowBinding:
    """What ONNX Runtime is told for calls on the same contiguous rows; nothing is copied.

    ONNX Runtime keeps pointers, so that Python must keep the memory: of the state, and of what the
    last call was bound to.

    Args:
        graph: an ``onnxruntime.InferenceSession``.
        values: the state's rows by graph input name, as ``OrtValue`` over the cache's memory.
        presents: the output that goes with each.
        value_of: makes an ``OrtValue`` over an array's memory.

    Attributes:
        binding: ONNX Runtime's; its outputs are the states in order, then the logits.
        values: as given.
    """

    def __init__(
        self,
        graph: Any,
        values: Mapping[str, Any],
        presents: Mapping[str, str],
        value_of: Callable[[npt.NDArray[Any]], Any],
    ) -> None:
        self.binding = graph.io_binding()
        self.values = dict(values)
        for past, value in self.values.items():
            self.binding.bind_ortvalue_input(past, value)
            self.binding.bind_ortvalue_output(presents[past], value)
        self._value_of = value_of
        # Another provider may take its copy of an input when the input is bound, not when it runs.
        self._reads_host = graph.get_providers() == ["CPUExecutionProvider"]
        self._control: dict[str, tuple[npt.NDArray[Any], Any]] = {}
        self._output: tuple[npt.NDArray[Any], Any] | None = None

    def bind_control(self, name: str, array: npt.NDArray[Any]) -> None:
        """Gives one of the inputs that are no state; the array may change afterwards."""
        known = self._control.get(name)
        if self._reads_host and known is not None and known[0].shape == array.shape:
            known[0][...] = array  # bound already: ONNX Runtime reads this memory
            return
        kept = np.array(array, order="C")
        value = self._value_of(kept)
        self._control[name] = (kept, value)
        self.binding.bind_ortvalue_input(name, value)

    def bind_logits(self, target: npt.NDArray[Any]) -> None:
        """Says where the logits go."""
        if self._output is None or self._output[0] is not target:
            self._output = (target, self._value_of(target))
            self.binding.bind_ortvalue_output("logits", self._output[1])
