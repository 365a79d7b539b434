"""ONNX graphs of attention layers, each of which gets the output of the one below as its query.

So ONNX Runtime must run them in order, as in a model, and a step reads more caches than any level
of the processor's cache holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import NodeProto, ValueInfoProto, helper, numpy_helper

from benchmarks.cpu.huge_pages import HugePages
from minicache.runtime.huge_pages import collapse_pages

Array = np.ndarray


class Layers:
    """A session on such a graph, its inputs, outputs and caches bound once.

    Attributes:
        count: layers.
        arrays: inputs and caches, by name, in the memory that the session uses.
        attention: the output of the last layer in the last step, likewise.
    """

    def __init__(
        self,
        session: ort.InferenceSession,
        bound: Sequence[tuple[str, str, Any]],
        arrays: Mapping[str, Array],
        attention: Array,
        count: int,
    ) -> None:
        self.count, self.arrays, self.attention = count, arrays, attention
        self._session, self._held = session, bound
        self._binding = session.io_binding()
        for past, present, value in bound:
            if past:
                self._binding.bind_ortvalue_input(past, value)
            if present:
                self._binding.bind_ortvalue_output(present, value)
        named = {present for _, present, _ in bound}
        for output in session.get_outputs():
            if output.name not in named:  # what ONNX Runtime allocates anew in every step
                self._binding.bind_output(output.name, "cpu")

    def step(self) -> None:
        """Runs all layers once; the lengths stay, so every step does the same."""
        self._session.run_with_iobinding(self._binding)


class LayerChain:
    """Collects nodes and what is bound to them.

    Attributes:
        query: name of the next layer's query.
        layers: so far.
    """

    def __init__(self, query: Array) -> None:
        self.layers = 0
        self._shape, self._dtype = query.shape, query.dtype
        self._pages = HugePages()
        self._nodes: list[NodeProto] = []
        self._inputs: dict[str, ValueInfoProto] = {}
        self._outputs: list[ValueInfoProto] = []
        self._constants: list[Any] = []
        self._bound: list[tuple[str, str, Any]] = []
        self._values: dict[str, Any] = {}
        self._arrays: dict[str, Array] = {}
        self.query = self.input("query", query)

    def input(self, name: str, array: Array) -> str:
        """Declares an input, once, that every step reads."""
        if name not in self._inputs:
            self._arrays[name] = array = self._pages.copy(array)
            self._values[name] = ort.OrtValue.ortvalue_from_numpy(array)
            self._inputs[name] = _info(name, array)
            self._bound.append((name, "", self._values[name]))
        return name

    def output(self, name: str, of: str) -> str:
        """Declares an output that is bound to the memory of the input ``of``."""
        self._outputs.append(_info(name, self._arrays[of]))
        self._bound.append((of, name, self._values[of]))
        return name

    def fresh_output(self, name: str, dtype: np.dtype, shape: Sequence[int]) -> str:
        """Declares an output that ONNX Runtime allocates in every step."""
        kind = helper.np_dtype_to_tensor_dtype(dtype)
        self._outputs.append(helper.make_tensor_value_info(name, kind, list(shape)))
        return name

    def constant(self, name: str, array: Array) -> str:
        """Adds an initializer."""
        self._constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def node(
        self,
        kind: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        domain: str = "",
        **given: Any,
    ) -> str:
        """Adds a node; returns its first output."""
        node = helper.make_node(kind, inputs, outputs, domain=domain, **given)
        self._nodes.append(node)
        return outputs[0]

    def layer(self, attention: str) -> None:
        """Ends a layer: its attention is the next one's query."""
        self.query = attention
        self.layers += 1

    def open(self, threads: int = 1, library: Path | None = None, opset: int = 24) -> Layers:
        """A session on the graph as it is."""
        result = np.zeros(self._shape, self._dtype)
        self._bound.append(("", self.query, ort.OrtValue.ortvalue_from_numpy(result)))
        graph = helper.make_graph(
            self._nodes, "layers", list(self._inputs.values()),
            [_info(self.query, result), *self._outputs], self._constants,
        )  # fmt: skip
        opsets = [("", opset), ("com.microsoft", 1), ("com.minicache", 1)]
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid(*each) for each in opsets], ir_version=11
        )
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        if library:
            options.register_custom_ops_library(str(library))
        session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        collapse_pages()  # constants are ONNX Runtime's own memory
        return Layers(session, self._bound, self._arrays, result, self.layers)


def _info(name: str, array: Array) -> ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, kind, list(array.shape))
