"""Constant factors on attention scores, also where an exporter computes them from the head size."""

from __future__ import annotations

import onnx_ir as ir

from minicache.exporter import graph as g


def constant_factor(node: ir.Node, index: int) -> float | None:
    """The constant that a ``Mul`` or ``Div`` applies to its input ``index``; None otherwise."""
    if node.op_type not in ("Mul", "Div") or (node.op_type == "Div" and index != 0):
        return None
    number = scale_constant(node.inputs[1 - index])
    if number is None:
        return None
    return number if node.op_type == "Mul" else 1.0 / number


def scale_constant(value: ir.Value | None) -> float | None:
    """A scalar constant, also one computed from the static head size (GPT-2 exports)."""
    if value is None:
        return None
    number = g.scalar(value)
    node = value.producer()
    if number is not None or node is None:
        return number
    if node.op_type in ("Cast", "Identity"):
        return scale_constant(node.inputs[0])
    if node.op_type == "Sqrt":
        inner = scale_constant(node.inputs[0])
        return None if inner is None else inner**0.5
    if node.op_type in ("Div", "Mul"):
        left, right = scale_constant(node.inputs[0]), scale_constant(node.inputs[1])
        if left is None or right is None:
            return None
        return left / right if node.op_type == "Div" else left * right
    if node.op_type in ("Slice", "Gather", "Squeeze"):
        return _last_of_shape(node)
    return None


def _last_of_shape(node: ir.Node) -> float | None:
    """``Shape(x)[-1]`` where x ends in ``Reshape`` to a constant last dimension."""
    shape = node.inputs[0].producer() if node.inputs[0] is not None else None
    if shape is not None and shape.op_type in ("Slice", "Gather"):
        return _last_of_shape(shape)
    picked = g.scalar(node.inputs[1]) if len(node.inputs) > 1 else None
    if shape is None or shape.op_type != "Shape" or picked not in (-1.0, 3.0):
        return None
    source = shape.inputs[0]
    while source is not None and (above := source.producer()) is not None:
        if above.op_type == "Reshape":
            target = above.inputs[1]
            last = target.producer() if target is not None else None
            if last is not None and last.op_type == "Concat":
                return g.scalar(last.inputs[-1])
            array = g.constant_if_small(target)
            return float(array[-1]) if array is not None else None
        if above.op_type != "Transpose" or g.permutation(above)[-1:] != (3,):
            return None
        source = above.inputs[0]
    return None
