"""Writes ``com.microsoft::RotaryEmbedding`` in standard operators, which every parser knows."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from minicache.exporter.build import Inserter
from minicache.exporter.graph import attribute, describe, static_dim
from minicache.runtime.errors import UnsupportedModelError

FLOAT, INT64 = ir.DataType.FLOAT, ir.DataType.INT64


class LowerRotaryPass(ir.passes.InPlacePass):
    """Replaces every node; rotates in fp32 and rounds once, which a fused kernel does for free.

    Cosines and sines of a call are gathered once and shared by all nodes that use the same tables.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replaces the nodes.

        Raises:
            UnsupportedModelError: a node that counts its positions itself, or of unknown shape.
        """
        nodes = [n for n in model.graph if n.op_type == "RotaryEmbedding" and n.domain]
        angles: dict[tuple[ir.Value, ...], ir.Value] = {}
        for index, node in enumerate(nodes):
            _replace(Inserter(model.graph, node, f"rope{index}"), node, angles)
        return ir.passes.PassResult(model, modified=bool(nodes))


def _replace(b: Inserter, node: ir.Node, angles: dict[tuple[ir.Value, ...], ir.Value]) -> None:
    value, positions, cosines, sines = (_given(node, index) for index in range(4))
    width, heads = static_dim(cosines, 1), int(attribute(node, "num_heads", 0))
    old = node.outputs[0]
    if value.shape is None:  # what it gives has the same one
        value.shape = old.shape
    rank = len(value.shape or ())
    if value.dtype is None or width is None or rank not in (3, 4) or (rank == 3 and not heads):
        raise UnsupportedModelError(f"{describe(node)} has no known shape; export the model again")
    if len(positions.shape or (0, 0)) != 2 or attribute(node, "is_packed_batching", 0):
        raise UnsupportedModelError(
            f"{describe(node)} counts its positions itself; export the model with explicit "
            "positions [batch, sequence]"
        )
    parts = [width, width]
    if attribute(node, "rotary_embedding_dim", 0):
        last = static_dim(value, rank - 1)
        if last is None:
            raise UnsupportedModelError(f"{describe(node)} has no known width; export it again")
        parts.append((last if rank == 4 else last // heads) - 2 * width)
    interleaved = bool(attribute(node, "interleaved", 0))
    x = value
    if rank == 3:
        split = b.constant(f"heads_{heads}", np.array([0, 0, heads or -1, sum(parts)]))
        x = b.node("Reshape", [x, split], value.dtype, [None] * 4)
    x = b.node("Cast", [x], FLOAT, [None] * 4, {"to": FLOAT.value})
    axis = 2 if rank == 3 else 1  # of the heads, over which angles are the same
    cos, sin = (_angles(b, table, positions, axis, angles) for table in (cosines, sines))
    rotated = _rotated(b, x, cos, sin, parts, interleaved)
    back = value.dtype
    result = b.node("Cast", [rotated], back, [None] * 4, {"to": back.value})
    if rank == 3:
        whole = b.constant("joined_heads", np.array([0, 0, -1]))
        result = b.node("Reshape", [result, whole], back, [None] * 3)
    result.shape = old.shape if old.shape is not None else value.shape
    old.replace_all_uses_with(result)
    b.graph.remove(node, safe=True)


def _given(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    assert value is not None
    return value


def _angles(
    b: Inserter,
    table: ir.Value,
    positions: ir.Value,
    axis: int,
    known: dict[tuple[ir.Value, ...], ir.Value],
) -> ir.Value:
    """fp32 [B, S, 1, width] (or [B, 1, S, width]): the rows of ``table`` at the positions."""
    axes = b.constant(f"axis_{axis}", np.array([axis], np.int64))
    key = table, positions, axes
    if key not in known:
        assert table.dtype is not None
        rows = b.node("Gather", [table, positions], table.dtype, [None] * 3, {"axis": 0})
        wide = b.node("Cast", [rows], FLOAT, [None] * 3, {"to": FLOAT.value})
        known[key] = b.node("Unsqueeze", [wide, axes], FLOAT, [None] * 4)
    return known[key]


def _rotated(
    b: Inserter, x: ir.Value, cos: ir.Value, sin: ir.Value, parts: list[int], interleaved: bool
) -> ir.Value:
    """The last axis as pairs (a, b) turned to (a cos - b sin, b cos + a sin); the rest stays."""
    rest: list[ir.Value] = []
    width = parts[0]
    if len(parts) > 2 and parts[2]:
        sizes = b.constant(f"rotary_{parts[0]}_{parts[2]}", np.array([2 * width, parts[2]]))
        x, *rest = _split(b, x, sizes, 4)
    if interleaved:
        pairs = b.constant(f"pairs_{width}", np.array([0, 0, 0, width, 2]))
        x = b.node("Reshape", [x, pairs], FLOAT, [None] * 5)
        last = b.constant("axis_4", np.array([4], np.int64))
        one = b.constant("halves_1", np.array([1, 1]))
        first, second = (
            b.node("Squeeze", [half, last], FLOAT, [None] * 4) for half in _split(b, x, one, 5)
        )
    else:
        first, second = _split(b, x, b.constant(f"halves_{width}", np.array([width, width])), 4)

    def product(u: ir.Value, v: ir.Value) -> ir.Value:
        return b.node("Mul", [u, v], FLOAT, [None] * 4)

    turned = [
        b.node("Sub", [product(first, cos), product(second, sin)], FLOAT, [None] * 4),
        b.node("Add", [product(second, cos), product(first, sin)], FLOAT, [None] * 4),
    ]
    if interleaved:
        stacked = [b.node("Unsqueeze", [half, last], FLOAT, [None] * 5) for half in turned]
        joined = b.node("Concat", stacked, FLOAT, [None] * 5, {"axis": -1})
        flat = b.constant(f"flat_{width}", np.array([0, 0, 0, 2 * width]))
        turned = [b.node("Reshape", [joined, flat], FLOAT, [None] * 4)]
    if len(turned + rest) == 1:
        return turned[0]
    return b.node("Concat", [*turned, *rest], FLOAT, [None] * 4, {"axis": -1})


def _split(b: Inserter, x: ir.Value, sizes: ir.Value, rank: int) -> list[ir.Value]:
    """Two parts of the last axis."""
    kind, shape = ir.TensorType(FLOAT), ir.Shape([None] * rank)
    parts = [ir.Value(type=kind, shape=shape) for _ in range(2)]
    b.insert("Split", [x, sizes], parts, {"axis": -1})
    return parts
