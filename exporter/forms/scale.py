"""Constant factors on attention scores, also where an exporter computes them from the head size."""

from __future__ import annotations

import onnx_ir as ir

from minicache.exporter import graph as g


def constant_factor(node: ir.Node, index: int, head_dim: int | None = None) -> float | None:
    """The constant that a ``Mul`` or ``Div`` applies to its input ``index``; None otherwise.

    Args:
        node: any node.
        index: the input that is followed.
        head_dim: what ``Shape(x)[-1]`` counts where the graph does not show it; parity proves it.
    """
    if node.op_type not in ("Mul", "Div") or (node.op_type == "Div" and index != 0):
        return None
    number = scale_constant(node.inputs[1 - index], head_dim)
    if number is None:
        return None
    return number if node.op_type == "Mul" else 1.0 / number


def scale_constant(value: ir.Value | None, head_dim: int | None = None) -> float | None:
    """A scalar constant, also one computed from the static head size (GPT-2 exports)."""
    if value is None:
        return None
    number = g.scalar(value)
    node = value.producer()
    if number is not None or node is None:
        return number
    if node.op_type in ("Cast", "Identity"):
        return scale_constant(node.inputs[0], head_dim)
    if node.op_type == "Sqrt":
        inner = scale_constant(node.inputs[0], head_dim)
        return None if inner is None else inner**0.5
    if node.op_type in ("Div", "Mul"):
        left, right = (
            scale_constant(node.inputs[0], head_dim),
            scale_constant(node.inputs[1], head_dim),
        )
        if left is None or right is None:
            return None
        return left / right if node.op_type == "Div" else left * right
    if node.op_type in ("Slice", "Gather", "Squeeze"):
        return _last_of_shape(node, head_dim)
    return None


def _last_of_shape(node: ir.Node, head_dim: int | None) -> float | None:
    """``Shape(x)[-1]`` of a tensor per head: its size, as x shows it or the cache says."""
    shape = node.inputs[0].producer() if node.inputs[0] is not None else None
    if shape is not None and shape.op_type in ("Slice", "Gather"):
        return _last_of_shape(shape, head_dim)
    # An optimiser may have moved a Transpose to here: Shape(x)[0, 2, 1, 3] ends in the same.
    indices = g.constant_if_small(node.inputs[1]) if len(node.inputs) > 1 else None
    picked = None if indices is None or not indices.size else int(indices.reshape(-1)[-1])
    if shape is None or shape.op_type != "Shape" or picked not in (-1, 3):
        return None
    return _last_dim(shape.inputs[0]) or head_dim


_ELEMENTWISE = frozenset({"Add", "Sub", "Mul", "Div", "Neg", "Cast", "Identity"})


def _last_dim(value: ir.Value | None) -> float | None:
    """The last dimension, known by inference or read off the nodes that made it."""
    if value is None:
        return None
    known = (g.dims(value) or [None])[-1]
    if isinstance(known, int):
        return float(known)
    node = value.producer()
    if node is None:
        return None
    if node.op_type == "Reshape":
        target = node.inputs[1]
        last = target.producer() if target is not None else None
        if last is not None and last.op_type == "Concat":
            size = g.scalar(last.inputs[-1])
        else:
            array = g.constant_if_small(target)
            size = float(array[-1]) if array is not None and array.size else None
        return size if size is not None and size > 0 else None
    if node.op_type == "Transpose" and g.permutation(node)[-1:] == (3,):
        return _last_dim(node.inputs[0])
    if node.op_type == "Slice":
        return _sliced(node)
    if node.op_type == "Concat" and g.attribute(node, "axis", 0) in (-1, 3):
        parts = [_last_dim(source) for source in node.inputs]
        return None if None in parts else float(sum(part for part in parts if part))
    if node.op_type in _ELEMENTWISE:
        # A factor may be broadcast: its 1 says nothing.
        sizes = (_last_dim(source) for source in node.inputs)
        return next((size for size in sizes if size not in (None, 1.0)), None)
    return None


def _sliced(node: ir.Node) -> float | None:
    """The last dimension behind a ``Slice`` over one axis with constant bounds (partial RoPE)."""
    size = _last_dim(node.inputs[0])
    bounds = [g.scalar(node.inputs[i]) if i < len(node.inputs) else None for i in (1, 2, 3)]
    if size is None or bounds[2] is None:
        return None
    if bounds[2] not in (-1.0, 3.0):
        return size
    if (
        bounds[0] is None
        or bounds[1] is None
        or (len(node.inputs) > 4 and g.scalar(node.inputs[4]) != 1)
    ):
        return None
    return float(len(range(*slice(int(bounds[0]), int(bounds[1])).indices(int(size)))))
