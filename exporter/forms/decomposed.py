"""F1: ``MatMul``, ``Softmax``, ``MatMul`` around a ``Concat`` with the past.

What optimum, ``torch.onnx`` up to opset 22 and transformers' exporter write. Per layer::

    present_key   = Concat(past_key, key)          present_value = Concat(past_value, value)
    scores        = q * a @ Transpose(repeat_kv(present_key)) * b    (any of: scale, softcap, mask)
    probabilities = Softmax(scores)                                  (NaN rows may be zeroed)
    output        = Reshape(Transpose(probabilities @ repeat_kv(present_value)))

The match follows data from each ``Concat``; names of nodes and weights are never used.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from minicache.exporter import graph as g
from minicache.exporter.forms.scale import constant_factor
from minicache.exporter.sites import DECOMPOSED, AttentionSite, MaskUse
from minicache.runtime.errors import UnsupportedModelError

PATTERN = "MatMul/Softmax attention over Concat(past, new)"
_RESHAPING = frozenset({"Unsqueeze", "Expand", "Reshape", "Transpose", "Identity", "Cast"})
_PROJECTIONS = frozenset({"MatMul", "Gemm", "MatMulNBits", "Conv"})


class _Mismatch(Exception):
    """The walk met something the form does not have."""


@dataclass
class _Cached:
    """A ``Concat`` of a graph input (past) with new rows, returned as a graph output (present)."""

    past: ir.Value
    new: ir.Value
    present: ir.Value
    concat: ir.Node


@dataclass
class _Scores:
    """What happens to the scores between the first ``MatMul`` and ``Softmax``."""

    factor: float
    softcap: float = 0.0
    masks: list[MaskUse] = field(default_factory=list)


def find_cached(model: ir.Model) -> list[_Cached]:
    """All ``Concat`` nodes that grow a cache, in the order of the graph inputs."""
    found = []
    for past in model.graph.inputs:
        for node, index in g.data_uses(past):
            axis = g.attribute(node, "axis", 0)
            if node.op_type != "Concat" or index != 0 or axis not in (-2, 2):
                continue
            present = node.outputs[0]
            ends = [present] + [
                n.outputs[0] for n, _ in g.data_uses(present) if n.op_type == "Identity"
            ]
            outputs = [value for value in ends if value.is_graph_output()]
            if len(node.inputs) == 2 and node.inputs[1] is not None and outputs:
                found.append(_Cached(past, node.inputs[1], outputs[0], node))
    return found


def _single_use(value: ir.Value, doing: str) -> tuple[ir.Node, int]:
    uses = [
        (node, index)
        for node, index in g.data_uses(value)
        # An Identity that only returns the cache is no step of the attention.
        if not (node.op_type == "Identity" and node.outputs[0].is_graph_output())
    ]
    if len(uses) != 1:
        names = ", ".join(g.describe(node) for node, _ in uses) or "nothing"
        raise _Mismatch(f"{value.name!r} is read by {names} where one node was expected ({doing})")
    return uses[0]


def _to_matmul(cached: _Cached) -> tuple[ir.Node, int, float]:
    """Follows a grown cache through repeat_kv and scaling to its ``MatMul``."""
    value, factor = cached.concat.outputs[0], 1.0
    while True:
        node, index = _single_use(value, "repeat_kv and scale before MatMul")
        if node.op_type == "MatMul":
            return node, index, factor
        step = constant_factor(node, index)
        if step is not None:
            factor *= step
        elif node.op_type not in _RESHAPING or index != 0:
            raise _Mismatch(
                f"{g.describe(node)} stands between {cached.past.name!r} and its MatMul"
            )
        value = node.outputs[0]


def _query(matmul: ir.Node) -> tuple[ir.Value, float]:
    """The query before its scaling and casts, and the scale."""
    value, factor = matmul.inputs[0], 1.0
    while value is not None and (node := value.producer()) is not None:
        if node.op_type in ("Cast", "Identity"):
            value = node.inputs[0]
            continue
        steps = [(i, constant_factor(node, i)) for i in range(min(2, len(node.inputs)))]
        found = [(i, f) for i, f in steps if f is not None]
        if not found:
            break
        index, step = found[0]
        value, factor = node.inputs[index], factor * (step or 1.0)
    if value is None:
        raise _Mismatch(f"{g.describe(matmul)} has no query")
    return value, factor


def _to_softmax(matmul: ir.Node, factor: float) -> tuple[ir.Node, _Scores]:
    """Follows the scores to ``Softmax``, noting scale, softcap and masks."""
    scores, value, before_tanh = _Scores(factor), matmul.outputs[0], None
    while True:
        node, index = _single_use(value, "scores before Softmax")
        step = constant_factor(node, index)
        if node.op_type == "Softmax":
            break
        if step is not None and not scores.masks:
            scores.factor *= step
        elif node.op_type == "Tanh" and before_tanh is None and not scores.masks:
            before_tanh, scores.factor = scores.factor, 1.0
        elif node.op_type == "Add":
            mask = node.inputs[1 - index]
            assert mask is not None
            scores.masks.append(MaskUse(mask, "add", g.describe(node)))
        elif node.op_type == "Where" and index in (1, 2) and node.inputs[0] is not None:
            kind = "keep" if index == 1 else "drop"
            scores.masks.append(MaskUse(node.inputs[0], kind, g.describe(node)))
        elif node.op_type not in ("Cast", "Reshape", "Identity"):
            raise _Mismatch(f"{g.describe(node)} stands between the scores and Softmax")
        value = node.outputs[0]
    if before_tanh is not None:
        scores.softcap, scores.factor = scores.factor, before_tanh * scores.factor
    return node, scores


def _to_values(softmax: ir.Node) -> ir.Node:
    """Follows the probabilities to the second ``MatMul``."""
    value = softmax.outputs[0]
    while True:
        node, index = _single_use(value, "probabilities before MatMul")
        if node.op_type == "MatMul" and index == 0:
            return node
        zeroing = node.op_type == "Where" and index == 2
        if not zeroing and node.op_type not in ("Cast", "Identity", "Dropout", "Reshape"):
            raise _Mismatch(f"{g.describe(node)} stands between Softmax and the values")
        value = node.outputs[0]


def _to_output(matmul: ir.Node) -> ir.Value:
    """Follows the result to the ``Reshape`` that joins the heads: [B, S, H*D]."""
    value, transposed = matmul.outputs[0], False
    while True:
        node, index = _single_use(value, "heads joined by Transpose and Reshape")
        value = node.outputs[0]
        if node.op_type == "Transpose" and g.permutation(node) == (0, 2, 1, 3):
            transposed = True
        elif node.op_type == "Reshape" and transposed:
            return value
        # Where(fully masked row, 0, x) of transformers' exporter: causal rows are never empty.
        elif not (node.op_type == "Where" and index == 2) and (
            node.op_type not in ("Cast", "Identity", "Reshape")
        ):
            raise _Mismatch(f"{g.describe(node)} stands where the heads should be joined")


def _site(
    key: _Cached, value: _Cached, matmul: ir.Node, factor: float, out: ir.Node
) -> AttentionSite:
    query, query_factor = _query(matmul)
    _, scores = _to_softmax(matmul, factor * query_factor)
    output = _to_output(out)
    dtype = key.past.dtype or ir.DataType.FLOAT
    num_kv_heads, head_dim = g.static_dim(key.past, 1), g.static_dim(key.past, 3)
    if head_dim is None or num_kv_heads is None:
        raise _Mismatch(f"{key.past.name!r} has no fixed number of heads or head size")
    width = g.weight_rows(output) or g.static_dim(output, 2)
    num_heads = g.static_dim(query, 1) or (width // head_dim if width else None)
    if num_heads is None:
        raise _Mismatch(f"the number of query heads at {g.describe(matmul)} is not to be found")
    rope = [
        n.outputs[0].name or "" for n in g.ancestors(key.new, _PROJECTIONS) if n.op_type == "Cos"
    ]
    return AttentionSite(
        layer=-1,
        form=DECOMPOSED,
        node=g.describe(matmul),
        past_key=key.past,
        past_value=value.past,
        present_key=key.present,
        present_value=value.present,
        query=query,
        key=key.new,
        value=value.new,
        layout="BHSD",
        output=output,
        dtype=dtype,
        output_dtype=output.dtype or dtype,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        scale=scores.factor,
        softcap=scores.softcap,
        masks=scores.masks,
        rope_key=rope[0] if rope else "",
    )


def match(model: ir.Model) -> list[AttentionSite]:
    """Finds all F1 sites, in the order of the cache inputs.

    Raises:
        UnsupportedModelError: a cache is grown but not read as this form reads it.
    """
    cached = find_cached(model)
    ends: dict[int, tuple[_Cached, float]] = {}
    try:
        followed = [(c, *_to_matmul(c)) for c in cached]
        keys = []
        for c, matmul, index, factor in followed:
            left = matmul.inputs[0]
            stop = frozenset({"MatMul", "Gemm"})
            near = () if left is None else g.ancestors(left, stop)
            if index == 1 and any(n.op_type == "Softmax" for n in near):
                ends[id(matmul)] = (c, factor)
            elif index == 1:
                keys.append((c, matmul, factor))
            else:
                raise _Mismatch(f"{g.describe(matmul)} reads {c.past.name!r} as its left side")
        sites = []
        for c, matmul, factor in keys:
            softmax, _ = _to_softmax(matmul, factor)
            out = _to_values(softmax)
            if id(out) not in ends:
                raise _Mismatch(f"{g.describe(out)} multiplies no cached values (cross attention?)")
            value, value_factor = ends.pop(id(out))
            if value_factor != 1.0:
                raise _Mismatch(f"the values of {value.past.name!r} are scaled")
            sites.append(_site(c, value, matmul, factor, out))
        if ends:
            left_over = next(iter(ends.values()))[0].past.name
            raise _Mismatch(f"{left_over!r} is read as values but no keys belong to it")
    except _Mismatch as mismatch:
        raise UnsupportedModelError(
            f"Tried the pattern {PATTERN} (F1), but {mismatch}; export the model again with "
            "`optimum-cli export onnx --task text-generation-with-past`, or report this graph"
        ) from None
    return sites
