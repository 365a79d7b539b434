"""Fixtures in fp16: the fp32 ones, every float halved; they run wherever the original does."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, numpy_helper

FIXTURES = Path(__file__).parent.parent / "fixtures"
_LARGEST = float(np.finfo(np.float16).max)


def half_fixture(name: str, folder: Path) -> Path:
    """Writes an fp32 fixture as fp16 into ``folder``, with what lies beside it; returns ``folder``.

    Norms and angles are computed in fp16 too, which no exporter does: good enough for graphs whose
    original is proved against in the same numbers.
    """
    shutil.copytree(FIXTURES / name, folder, ignore=shutil.ignore_patterns("*.onnx", "*.data"))
    model = onnx.load(FIXTURES / name / "model.onnx")
    graph = model.graph
    for tensor in graph.initializer:
        _halve(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                _halve(attribute.t)
            if node.op_type == "Cast" and attribute.name == "to":
                attribute.i = _half(attribute.i)
    for value in (*graph.input, *graph.output, *graph.value_info):
        kind = value.type.tensor_type
        kind.elem_type = _half(kind.elem_type)
    onnx.save(model, folder / "model.onnx")
    return folder


def _half(kind: int) -> int:
    return TensorProto.FLOAT16 if kind == TensorProto.FLOAT else kind


def _halve(tensor: TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        array = numpy_helper.to_array(tensor)
        infinite = np.isinf(array)
        halved = np.where(infinite, array, np.clip(array, -_LARGEST, _LARGEST))
        tensor.CopyFrom(numpy_helper.from_array(halved.astype(np.float16), tensor.name))
