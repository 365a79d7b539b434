"""What the forms with fused attention ask of a node's inputs."""

from __future__ import annotations

import onnx_ir as ir

from minicache.exporter import graph as g


def slot(node: ir.Node, index: int) -> ir.Value | None:
    """An input that may be absent."""
    return node.inputs[index] if index < len(node.inputs) else None


def width(value: ir.Value) -> int | None:
    """Last dimension of a projection [B, S, E], from its shape or the weight that made it."""
    known = g.static_dim(value, 2)
    node = value.producer()
    if known is not None or node is None:
        return known
    if node.op_type == "MatMulNBits":
        return int(g.attribute(node, "N", 0)) or None
    if node.op_type == "MatMul" and node.inputs[1] is not None:
        return g.static_dim(g.through_identity(node.inputs[1]), 1)
    if (
        node.op_type in ("Add", "Cast", "Identity", "RotaryEmbedding")
        and node.inputs[0] is not None
    ):
        return width(node.inputs[0])
    return None
