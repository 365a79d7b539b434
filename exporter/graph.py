"""Small steps over an ``onnx_ir`` graph that the matchers and passes share."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

# These read a tensor's shape or its NaNs, not its numbers: no step of a data path.
SIDE_READERS = frozenset({"Shape", "Size", "IsNaN"})


def describe(node: ir.Node | None) -> str:
    """Names a node in a message: operator, and name where it has one."""
    if node is None:
        return "a graph input or weight"
    domain = f"{node.domain}::" if node.domain else ""
    return f"{domain}{node.op_type} {node.name or node.outputs[0].name!r}"


def data_uses(value: ir.Value) -> list[tuple[ir.Node, int]]:
    """The uses of a value other than reading its shape."""
    return [(use.node, use.idx) for use in value.uses() if use.node.op_type not in SIDE_READERS]


def returned(value: ir.Value) -> ir.Value | None:
    """The graph output that a value is, or is returned as by ``Identity`` or an idle ``Cast``."""
    ends = [value]
    for node, _ in data_uses(value):
        same = node.op_type == "Cast" and node.outputs[0].dtype in (value.dtype, None)
        if node.op_type == "Identity" or same:
            ends.append(node.outputs[0])
    return next((end for end in ends if end.is_graph_output()), None)


def through_identity(value: ir.Value) -> ir.Value:
    """The value behind ``Identity`` nodes (exporters share equal weights through them)."""
    while (node := value.producer()) is not None and node.op_type == "Identity":
        source = node.inputs[0]
        if source is None:
            break
        value = source
    return value


def constant(value: ir.Value | None) -> np.ndarray | None:
    """The array of an initializer or ``Constant``; None for anything computed."""
    if value is None:
        return None
    tensor = ir.convenience.get_const_tensor(through_identity(value))
    return None if tensor is None else tensor.numpy()


def scalar(value: ir.Value | None) -> float | None:
    """The number in a constant with one element; None for anything else."""
    array = constant_if_small(value)
    return float(array.reshape(())) if array is not None and array.size == 1 else None


def constant_if_small(value: ir.Value | None, limit: int = 16) -> np.ndarray | None:
    """Like ``constant``, but never reads a large weight from disk."""
    if value is None:
        return None
    tensor = ir.convenience.get_const_tensor(through_identity(value))
    return None if tensor is None or tensor.size > limit else tensor.numpy()


def dims(value: ir.Value) -> list[int | str | None] | None:
    """Dimensions of a value; a symbol made of digits counts as that number (torch.export)."""
    if value.shape is None:
        return None
    result: list[int | str | None] = []
    for dim in value.shape.dims:
        size = dim if isinstance(dim, int) else dim.value
        if isinstance(size, str) and re.fullmatch("[0-9]{1,9}", size):
            size = int(size)
        result.append(size)
    return result


def static_dim(value: ir.Value, axis: int) -> int | None:
    """One dimension where it is known and positive, else None."""
    shape = dims(value)
    if shape is None or axis >= len(shape):
        return None
    dim = shape[axis]
    return dim if isinstance(dim, int) and dim > 0 else None


def attribute(node: ir.Node, name: str, default: int | float) -> int | float:
    """An int or float attribute, or its default."""
    found = node.attributes.get(name)
    return default if found is None else found.value


def permutation(node: ir.Node) -> tuple[int, ...]:
    """``perm`` of a ``Transpose``; empty for the default."""
    found = node.attributes.get("perm")
    return () if found is None else tuple(found.value)


def input_index(name: str | None) -> int | None:
    """The layer number in a cache tensor's name: the last number that stands alone."""
    found = re.findall(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])", name or "")
    return int(found[-1]) if found else None


def ancestors(value: ir.Value, stop: frozenset[str] = frozenset()) -> Iterator[ir.Node]:
    """Nodes that a value is computed from, nearest first; does not go behind ``stop`` operators."""
    queue, seen = [value], set()
    while queue:
        node = queue.pop(0).producer()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        if node.op_type not in stop:
            queue += [source for source in node.inputs if source is not None]


def weight_rows(value: ir.Value) -> int | None:
    """Last dimension of a [B, S, E] tensor, read from the weight that multiplies it, else None."""
    for node, index in data_uses(value):
        if index != 0:
            continue
        if node.op_type in ("Cast", "Identity", "Reshape"):
            return weight_rows(node.outputs[0])
        if node.op_type == "MatMulNBits":
            return int(attribute(node, "K", 0)) or None
        if node.op_type in ("MatMul", "Gemm") and node.inputs[1] is not None:
            axis = 1 if node.op_type == "Gemm" and attribute(node, "transB", 0) else 0
            rows = static_dim(through_identity(node.inputs[1]), axis)
            if rows is not None:
                return rows
    return None
