"""Writes ONNX Runtime's fused normalisations in standard operators, which every parser knows."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from minicache.exporter.build import Inserter
from minicache.exporter.graph import attribute, dims

FLOAT = ir.DataType.FLOAT
# Name to whether a residual is added first and whether the mean is taken out. The first has no
# domain of its own in ONNX Runtime.
NORMS = {
    "SimplifiedLayerNormalization": (False, False),
    "SkipSimplifiedLayerNormalization": (True, False),
    "SkipLayerNormalization": (True, True),
}


class LowerNormsPass(ir.passes.InPlacePass):
    """Replaces every node; sums in fp32 as ONNX Runtime does, whatever the model's type."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replaces the nodes."""
        nodes = [node for node in model.graph if node.op_type in NORMS]
        for index, node in enumerate(nodes):
            _replace(Inserter(model.graph, node, f"norm{index}"), node)
        return ir.passes.PassResult(model, modified=bool(nodes))


def _replace(b: Inserter, node: ir.Node) -> None:
    skips, centred = NORMS[node.op_type]
    inputs = [*node.inputs, None, None, None, None]
    x = inputs[0]
    weight = inputs[2] if skips else inputs[1]
    assert x is not None and weight is not None
    dtype = x.dtype or weight.dtype
    assert dtype is not None
    shape = _dims(x)
    # (input, weight), (input, skip, weight, bias) or (input, skip, weight, beta, bias)
    offset, bias = (inputs[3], inputs[4]) if centred else (None, inputs[3])
    if skips:
        for other in (inputs[1], bias):
            if other is not None:
                x = b.node("Add", [x, other], dtype, [None] * 3)
        # ONNX Runtime's last output of these is the sum, for the next residual.
        if len(node.outputs) > 3:
            node.outputs[3].replace_all_uses_with(x)
    wide = _cast(b, x, dtype, FLOAT)
    if centred:
        wide = b.node("Sub", [wide, _mean(b, wide)], FLOAT, shape)
    square = _mean(b, b.node("Mul", [wide, wide], FLOAT, shape))
    epsilon = float(attribute(node, "epsilon", 1e-5))
    shift = b.constant(f"epsilon_{epsilon:g}", np.array(epsilon, np.float32))
    root = b.node("Sqrt", [b.node("Add", [square, shift], FLOAT, [None] * 3)], FLOAT, [None] * 3)
    normal = b.node("Div", [wide, root], FLOAT, shape)
    assert weight.dtype is not None
    result = b.node("Mul", [normal, _cast(b, weight, weight.dtype, FLOAT)], FLOAT, shape)
    if offset is not None:
        result = b.node("Add", [result, _cast(b, offset, dtype, FLOAT)], FLOAT, shape)
    node.outputs[0].replace_all_uses_with(_cast(b, result, FLOAT, dtype))
    b.graph.remove(node, safe=True)


def _mean(b: Inserter, value: ir.Value) -> ir.Value:
    # As an input since opset 18, as an attribute before: both are in use, so neither serves all.
    if (b.graph.opset_imports or {}).get("", 18) < 18:
        axes = {"axes": [-1], "keepdims": 1}
        return b.node("ReduceMean", [value], FLOAT, [None] * 3, axes)
    last = b.constant("axis_last", np.array([-1], np.int64))
    return b.node("ReduceMean", [value, last], FLOAT, [None] * 3, {"keepdims": 1})


def _cast(b: Inserter, value: ir.Value, given: ir.DataType, wanted: ir.DataType) -> ir.Value:
    if given == wanted:
        return value
    return b.node("Cast", [value], wanted, _dims(value), {"to": wanted.value})


def _dims(value: ir.Value) -> list[int | str | None]:
    return dims(value) or [None] * 3
