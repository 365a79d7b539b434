"""Stands in for an ``onnxruntime.InferenceSession``: the NumPy reference runs the graph.

Session tests run with it where the op library is not built, and elsewhere compare the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from minicache.exporter import schemas
from minicache.plugins.reference import run_node

TYPES = {
    TensorProto.FLOAT: "tensor(float)",
    TensorProto.FLOAT16: "tensor(float16)",
    TensorProto.BFLOAT16: "tensor(bfloat16)",
    TensorProto.INT8: "tensor(int8)",
    TensorProto.INT32: "tensor(int32)",
}


class MiniCacheAttention(OpRun):
    """The op, computed by the reference."""

    op_domain = schemas.DOMAIN

    def _run(self, *inputs: np.ndarray, **_: Any) -> tuple[np.ndarray, ...]:
        attributes: dict[str, Any] = {}
        for attribute in self.onnx_node.attribute:
            value = onnx.helper.get_attribute_value(attribute)
            attributes[attribute.name] = value.decode() if isinstance(value, bytes) else value
        full = schemas.attributes_with_defaults(attributes)
        given = dict(zip(schemas.input_names(full), inputs, strict=True))
        # On TensorRT a node hands on the states that it only reads.
        kept = {name.replace("past_", "present_", 1): array for name, array in given.items()}
        outputs = {**kept, **run_node(full, given)}
        threaded = len(self.onnx_node.output) > 1
        return tuple(outputs[name] for name in schemas.output_names(full, threaded))


class ReferenceGraph:
    """What ``runtime.binding`` needs of an inference session."""

    def __init__(
        self,
        path: Path,
        threads: int | None,
        providers: Sequence[str],
        kernels: Path | None = None,
    ) -> None:
        self._model = onnx.load(path)
        self._evaluator = ReferenceEvaluator(self._model, new_ops=[MiniCacheAttention])
        self.runs = 0

    def get_inputs(self) -> list[SimpleNamespace]:
        return [_described(value) for value in self._model.graph.input]

    def get_outputs(self) -> list[SimpleNamespace]:
        return [_described(value) for value in self._model.graph.output]

    def get_providers(self) -> list[str]:
        return ["CPUExecutionProvider"]

    def io_binding(self) -> ReferenceBinding:
        return ReferenceBinding()

    def run_with_iobinding(self, binding: ReferenceBinding, options: Any = None) -> None:
        self.runs += 1
        feeds = {name: value.numpy() for name, value in binding.inputs.items()}
        results = self._evaluator.run(list(binding.outputs), feeds)
        for value, result in zip(binding.outputs.values(), results, strict=True):
            value.update_inplace(np.ascontiguousarray(result))


class ReferenceBinding:
    """What ``runtime.binding`` needs of an IOBinding."""

    def __init__(self) -> None:
        self.inputs: dict[str, Any] = {}
        self.outputs: dict[str, Any] = {}

    def bind_ortvalue_input(self, name: str, value: Any) -> None:
        self.inputs[name] = value

    def bind_ortvalue_output(self, name: str, value: Any) -> None:
        self.outputs[name] = value

    def get_outputs(self) -> list[Any]:
        return list(self.outputs.values())


def _described(value: onnx.ValueInfoProto) -> SimpleNamespace:
    tensor = value.type.tensor_type
    shape = [size.dim_param or size.dim_value for size in tensor.shape.dim]
    return SimpleNamespace(name=value.name, type=TYPES.get(tensor.elem_type, "tensor"), shape=shape)
