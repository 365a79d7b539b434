"""Tells the rotary embeddings of layers apart: layers with different ones must not share a code.

Gemma 3 turns its sliding and its full layers by different frequencies. Exporters compute RoPE from
frequencies or look it up in tables, once per model or once per layer; what counts are the numbers.
"""

from __future__ import annotations

import zlib

import onnx_ir as ir

from minicache.exporter import graph as g

_PROJECTIONS = frozenset({"MatMul", "Gemm", "MatMulNBits", "Conv"})
_SMALL = 1 << 16  # bytes: frequencies are compared by content, tables by name


def rope_key(key: ir.Value) -> str:
    """Names the RoPE of a key that is cached after it.

    Args:
        key: the new keys, after RoPE.

    Returns:
        The same text for the same RoPE; empty where none is found.
    """
    for node in g.ancestors(key, _PROJECTIONS):
        if node.op_type == "Cos":
            return _source(node.outputs[0])
        if node.op_type == "RotaryEmbedding":
            # ai.onnx: x, cos, sin, positions; com.microsoft: x, positions, cos, sin.
            table = node.inputs[2 if node.domain else 1]
            return "" if table is None else _source(table)
    return ""


def _source(table: ir.Value) -> str:
    """The float weights that cosines are computed from, or are."""
    values = [table]
    for node in g.ancestors(table, frozenset({"Shape"})):
        if node.op_type != "Shape":
            values += [value for value in node.inputs if value is not None]
    keys = set()
    for value in values:
        tensor = ir.convenience.get_const_tensor(g.through_identity(value))
        if tensor is None or not tensor.dtype.is_floating_point() or tensor.size < 2:
            continue
        if tensor.nbytes <= _SMALL:
            keys.add(f"{list(tensor.shape)}:{zlib.crc32(tensor.numpy().tobytes()):08x}")
        else:
            keys.add(g.through_identity(value).name or "")
    return " ".join(sorted(keys)) or (table.name or "")
