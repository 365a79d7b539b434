"""F1: ``MatMul``, ``Softmax``, ``MatMul`` around a ``Concat`` with the past.

What optimum, ``torch.onnx`` up to opset 22 and transformers' exporter write. Per layer::

    present_key   = Concat(past_key, key)          present_value = Concat(past_value, value)
    scores        = q * a @ Transpose(repeat_kv(present_key)) * b    (any of: scale, softcap, mask)
    probabilities = Softmax(scores)                                  (NaN rows may be zeroed)
    output        = Reshape(Transpose(probabilities @ repeat_kv(present_value)))

The match follows data from each ``Concat``; names of nodes and weights are never used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import onnx_ir as ir

from minicache.exporter import graph as g
from minicache.exporter.forms.grown_cache import (
    GrownCache,
    Mismatch,
    check_sizes,
    joined_heads,
    query_heads,
    single_use,
    site_of,
)
from minicache.exporter.forms.scale import constant_factor
from minicache.exporter.sites import DECOMPOSED, AttentionSite, MaskUse

PATTERN = "MatMul/Softmax attention over Concat(past, new) (F1)"
# Between the probabilities and their MatMul: types, shapes, rows that see nothing made zero, and
# the column of a sink cut off.
_AFTER_SOFTMAX = frozenset({"Cast", "Identity", "Dropout", "Reshape", "Slice", "Where"})


@dataclass
class _Scores:
    """What happens to the scores between the first ``MatMul`` and ``Softmax``."""

    factor: float
    softcap: float = 0.0
    masks: list[MaskUse] = field(default_factory=list)
    head_sink: ir.Value | None = None


def _query(matmul: ir.Node, head_dim: int) -> tuple[ir.Value, float]:
    """The query before its scaling and casts, and the scale."""
    value, factor = matmul.inputs[0], 1.0
    while value is not None and (node := value.producer()) is not None:
        if node.op_type in ("Cast", "Identity"):
            value = node.inputs[0]
            continue
        steps = [(i, constant_factor(node, i, head_dim)) for i in range(min(2, len(node.inputs)))]
        found = [(i, f) for i, f in steps if f is not None]
        if not found:
            break
        index, step = found[0]
        value, factor = node.inputs[index], factor * (step or 1.0)
    if value is None:
        raise Mismatch(f"{g.describe(matmul)} has no query")
    return value, factor


def _to_softmax(key: GrownCache, factor: float) -> tuple[ir.Node, _Scores]:
    """Follows the scores to ``Softmax``, noting scale, softcap and masks."""
    scores, value, before_tanh = _Scores(factor), key.reader.outputs[0], None
    while True:
        node, index = _step(value)
        step = constant_factor(node, index, key.head_dim)
        if node.op_type == "Softmax":
            break
        if step is not None:  # behind a mask, too: what is hidden stays hidden
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
        elif node.op_type == "Concat" and index == 0 and scores.head_sink is None:
            scores.head_sink = _head_sink(node)
        elif node.op_type not in ("Cast", "Reshape", "Identity", "Sub"):
            raise Mismatch(f"{g.describe(node)} stands between the scores and Softmax")
        value = node.outputs[0]
    if before_tanh is not None:
        scores.softcap, scores.factor = scores.factor, before_tanh * scores.factor
    return node, scores


def _step(value: ir.Value) -> tuple[ir.Node, int]:
    """The next node on the way to ``Softmax``; subtracting the row's maximum changes nothing."""
    uses = g.data_uses(value)
    largest = {node.outputs[0] for node, _ in uses if node.op_type == "ReduceMax"}
    stable = [
        (node, index)
        for node, index in uses
        if node.op_type == "Sub" and index == 0 and node.inputs[1] in largest
    ]
    if len(uses) == 2 and stable:
        return stable[0]
    node, index = single_use(value, "scores before Softmax")
    if node.op_type == "Sub":
        raise Mismatch(f"{g.describe(node)} stands between the scores and Softmax")
    return node, index


def _head_sink(concat: ir.Node) -> ir.Value:
    """The weight [H] whose entries join the scores as one more column: attention sinks."""
    value = concat.inputs[1] if len(concat.inputs) == 2 else None
    while value is not None and (node := value.producer()) is not None:
        if node.op_type not in ("Expand", "Reshape", "Unsqueeze", "Identity"):
            break
        value = node.inputs[0]
    if value is None or ir.convenience.get_const_tensor(value) is None:
        raise Mismatch(f"{g.describe(concat)} adds columns to the scores that are no weight [H]")
    return value


def _to_values(softmax: ir.Node) -> ir.Node:
    """Follows the probabilities to the second ``MatMul``."""
    value = softmax.outputs[0]
    while True:
        node, index = single_use(value, "probabilities before MatMul")
        if node.op_type == "MatMul" and index == 0:
            return node
        if node.op_type not in _AFTER_SOFTMAX or index != (2 if node.op_type == "Where" else 0):
            raise Mismatch(f"{g.describe(node)} stands between Softmax and the values")
        value = node.outputs[0]


def _is_values(cache: GrownCache) -> bool:
    """Whether the ``MatMul`` that reads a cache weights it with probabilities.

    Raises:
        Mismatch: the cache is its left side.
    """
    if cache.slot != 1:
        name = g.describe(cache.reader)
        raise Mismatch(f"{name} reads {cache.past.name!r} as its left side")
    value = cache.reader.inputs[0]
    while value is not None and (node := value.producer()) is not None:
        if node.op_type == "Softmax":
            return True
        if node.op_type not in _AFTER_SOFTMAX:
            break
        value = node.inputs[2 if node.op_type == "Where" else 0]
    return False


def _site(key: GrownCache, value: GrownCache) -> AttentionSite:
    query, query_factor = _query(key.reader, key.head_dim)
    _, scores = _to_softmax(key, key.factor * query_factor)
    output = joined_heads(value.reader.outputs[0])
    num_heads = query_heads(query, output, key.head_dim)
    sink = scores.head_sink
    if sink is not None and (sink.shape is None or math.prod(sink.shape.numpy()) != num_heads):
        raise Mismatch(f"{sink.name!r}, which joins the scores, has not one entry per head")
    dtype = key.past.dtype or ir.DataType.FLOAT
    return site_of(
        key,
        value,
        form=DECOMPOSED,
        node=g.describe(key.reader),
        query=query,
        output=output,
        output_dtype=output.dtype or dtype,
        num_heads=num_heads,
        scale=scores.factor,
        softcap=scores.softcap,
        masks=scores.masks,
        head_sink=sink,
    )


def match(caches: list[GrownCache]) -> list[AttentionSite]:
    """Finds all F1 sites among the grown caches.

    Raises:
        UnsupportedModelError: a cache is read by ``MatMul``, but not as this form reads it.
    """
    mine = [cache for cache in caches if cache.reader.op_type == "MatMul"]
    try:
        values = {id(cache.reader): cache for cache in mine if _is_values(cache)}
        sites = []
        for key in (cache for cache in mine if not _is_values(cache)):
            softmax, _ = _to_softmax(key, key.factor)
            out = _to_values(softmax)
            if id(out) not in values:
                raise Mismatch(f"{g.describe(out)} multiplies no cached values (cross attention?)")
            value = values.pop(id(out))
            if value.factor != 1.0:
                raise Mismatch(f"the values of {value.past.name!r} are scaled")
            check_sizes(key, value)
            sites.append(_site(key, value))
        if values:
            left_over = next(iter(values.values())).past.name
            raise Mismatch(f"{left_over!r} is read as values but no keys belong to it")
    except Mismatch as mismatch:
        raise mismatch.refusal(PATTERN) from None
    return sites
