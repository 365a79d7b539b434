"""What a graph says of a layer's RoPE without running it: where, how many components, frequencies.

For ``inspect`` and for comparisons only. The exporter's own knowledge is measured
(``calibration/rope_probe.py``), which takes a run of the whole model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from minicache.exporter import graph as g
from minicache.exporter.sites import AttentionSite

_PROJECTIONS = frozenset({"MatMul", "Gemm", "MatMulNBits", "Conv"})
LARGEST_HEAD = 1024
LARGEST_EXPONENT = 100.0  # of a base that anyone means


@dataclass(frozen=True)
class RopeFacts:
    """RoPE as the graph has it.

    Attributes:
        where: ``op``: inside the attention operator; ``graph``: nodes before the cache.
        rotary_dim: rotated components of a head; None where constants do not tell.
        interleaved: pairs are (2i, 2i+1); None likewise.
        frequencies: angle per position of each pair; empty likewise.
    """

    where: str
    rotary_dim: int | None = None
    interleaved: bool | None = None
    frequencies: tuple[float, ...] = ()

    @property
    def base(self) -> float | None:
        """The base of plain frequencies; None where they are scaled or not known."""
        count = len(self.frequencies)
        if count < 2 or not 0 < self.frequencies[1] < 1:
            return None
        exponent = -count * math.log(self.frequencies[1])
        if exponent > LARGEST_EXPONENT:
            return None
        base = math.exp(exponent)
        return base if self.has_base(base) else None

    def has_base(self, base: float) -> bool:
        """Whether frequencies are the plain ones of a base; tables may be fp16."""
        count = len(self.frequencies)
        plain = base ** (-np.arange(count) / count)
        return bool(np.allclose(self.frequencies, plain, rtol=0.02, atol=1e-5))


def find_rope(site: AttentionSite) -> RopeFacts | None:
    """The RoPE of a layer's keys; None where neither operator nor nodes for one are found."""
    if site.rope is not None:
        turns = _table_frequencies(site.rope.cos, site.rope.sin)
        return RopeFacts("op", site.rope.rotary_dim, site.rope.interleaved, turns)
    for node in g.ancestors(site.key, _PROJECTIONS):
        if node.op_type == "RotaryEmbedding":
            return _of_node(node)
        if node.op_type == "Cos":
            return _of_cosine(node)
    return None


def _of_node(node: ir.Node) -> RopeFacts:
    # ai.onnx: x, cos, sin, positions; com.microsoft: x, positions, cos, sin.
    cos, sin = node.inputs[2 if node.domain else 1], node.inputs[3 if node.domain else 2]
    half = None if cos is None else g.static_dim(cos, len(cos.shape or ()) - 1)
    rotated = int(g.attribute(node, "rotary_embedding_dim", 0)) or (half and 2 * half)
    turns = _table_frequencies(_table(cos), _table(sin))
    if not turns and cos is not None:  # computed for these positions, not looked up
        above = next((n for n in g.ancestors(cos, _PROJECTIONS) if n.op_type == "Cos"), None)
        turns = () if above is None else _of_cosine(above).frequencies
    return RopeFacts("graph", rotated, bool(g.attribute(node, "interleaved", 0)), turns)


def _table(value: ir.Value | None) -> ir.Value | None:
    """The table that rows are picked from."""
    node = None if value is None else value.producer()
    return node.inputs[0] if node is not None and node.op_type == "Gather" else value


def _table_frequencies(cos: ir.Value | None, sin: ir.Value | None) -> tuple[float, ...]:
    """The angles of position 1; only this row of the tables is read."""
    rows = []
    for table in (cos, sin):
        tensor = ir.convenience.get_const_tensor(g.through_identity(table)) if table else None
        if tensor is None or not tensor.dtype.is_floating_point() or len(tensor.shape) != 2:
            return ()
        rows.append(np.asarray(tensor.numpy()[1:2], np.float64))
    near, far = rows
    return _plausible(np.arctan2(far, near)[0]) if near.shape == far.shape and near.size else ()


def _of_cosine(node: ir.Node) -> RopeFacts:
    """RoPE from nodes: the cosine of positions times frequencies."""
    angles = node.inputs[0]
    assert angles is not None
    constants = {
        tuple(values): values for values in map(_frequencies, _sources(angles)) if len(values)
    }
    if len(constants) == 1:
        (turns,) = constants.values()
        return RopeFacts("graph", 2 * len(turns), None, turns)
    return RopeFacts("graph")


def _sources(value: ir.Value) -> Iterator[ir.Value]:
    for node in g.ancestors(value, frozenset({"Shape", "Gather"})):
        if node.op_type not in ("Shape", "Gather"):
            yield from (source for source in node.inputs if source is not None)


def _frequencies(value: ir.Value) -> tuple[float, ...]:
    """A constant that can be frequencies: a vector of positive numbers up to 1."""
    array = g.constant_if_small(value, LARGEST_HEAD)
    vector = array is not None and array.dtype.kind == "f" and 1 < array.size == max(array.shape)
    return _plausible(np.asarray(array, np.float64).ravel()) if vector else ()


def _plausible(turns: npt.NDArray[np.float64]) -> tuple[float, ...]:
    fine = bool(np.isfinite(turns).all() and (turns >= 0).all() and (turns <= 1.001).all())
    return tuple(turns.tolist()) if fine else ()
