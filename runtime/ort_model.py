"""What models on ONNX Runtime have in common, on the host and on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from minicache.runtime.cache import Cache
from minicache.runtime.model import call_failed
from minicache.runtime.ort import first_line
from minicache.runtime.signature import check_names, logits_type

_BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16


class OrtModel:
    """A graph that was compared with the manifest, and its cache.

    Args:
        graph: an ``onnxruntime.InferenceSession``.
        cache: shapes and types of the state.
        path: of the graph, for messages.

    Raises:
        PackageError: graph and manifest do not belong together.
    """

    def __init__(self, graph: Any, cache: Cache, path: Path) -> None:
        self._graph, self._cache = graph, cache
        check_names(graph, cache, path)
        self._logits_dtype = logits_type(graph, path)

    def element_type(self, past: str) -> np.dtype[Any] | int:
        """NumPy's type of a state, or ONNX's number of it where NumPy has none."""
        bfloat16 = self._cache.states[past].dtype == "bfloat16"
        return _BFLOAT16 if bfloat16 else self._cache.arrays[past].dtype

    def run_bound(self, binding: Any, options: Any = None) -> None:
        """Runs the graph.

        Raises:
            SessionError: ONNX Runtime refused the call.
        """
        try:
            self._graph.run_with_iobinding(binding, options)
        except Exception as error:  # ONNX Runtime raises several unrelated classes
            raise call_failed("onnxruntime", first_line(error)) from error

    def pointers(self, addresses: Mapping[str, int], binding: Any) -> dict[str, tuple[int, int]]:
        """Each state's address, and that of the output that ``binding`` pairs with it."""
        # IOBinding returns outputs in the order in which they were first bound: states, logits.
        results = binding.get_outputs()[: len(addresses)]
        return {
            past: (address, result.data_ptr())
            for (past, address), result in zip(addresses.items(), results, strict=True)
        }

    def close(self) -> None:
        """Nothing: ONNX Runtime's values are freed with the last reference to them."""
