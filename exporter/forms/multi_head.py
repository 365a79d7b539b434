"""F5: ``com.microsoft::MultiHeadAttention``, what ONNX Runtime's optimiser and fusions make.

It has no kv heads: a GQA model repeats them before. The cache is grown outside by ``Concat`` (what
transformers' exporter gives with fusions), or by the node itself (models without GQA)::

    0 query [B, S, H*D]  1 key  2 value  3 bias  4 key_padding_mask  5 attention_bias
    6 past_key  7 past_value  8 past_sequence_length  9 cache_indirection
    outputs: 0 attention [B, S, H*D]  1 present_key  2 present_value  3 qk
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from minicache.exporter import graph as g
from minicache.exporter.forms.grown_cache import GrownCache, Mismatch, pair_caches, site_of
from minicache.exporter.forms.projection import slot, width
from minicache.exporter.forms.rope_key import rope_key
from minicache.exporter.sites import MULTI_HEAD, AttentionSite, MaskUse

PATTERN = "com.microsoft MultiHeadAttention with a cache (F5)"
OP = ("com.microsoft", "MultiHeadAttention")


def _masks(node: ir.Node) -> list[MaskUse]:
    """Padding mask (kept where not 0) and attention bias.

    Raises:
        Mismatch: the padding mask holds lengths, or an input has no counterpart.
    """
    for index, name in ((3, "bias"), (8, "past_sequence_length"), (9, "cache_indirection")):
        if slot(node, index) is not None:
            raise Mismatch(f"{g.describe(node)} has the input {name}")
    masks = []
    padding, bias = slot(node, 4), slot(node, 5)
    if padding is not None:
        if len(padding.shape or ()) < 2:
            raise Mismatch(f"{g.describe(node)} has a key_padding_mask of lengths")
        masks.append(MaskUse(padding, "keep", g.describe(node)))
    if bias is not None:
        masks.append(MaskUse(bias, "add", g.describe(node)))
    return masks


def _facts(node: ir.Node, head_dim: int, dtype: ir.DataType) -> dict[str, Any]:
    """What the node itself says about a site."""
    query, output = node.inputs[0], node.outputs[0]
    if query is None or len(query.shape or (0,) * 3) != 3:
        raise Mismatch(f"{g.describe(node)} has no query [B, S, H*D]")
    if len(node.outputs) > 3 and (node.outputs[3].uses() or node.outputs[3].is_graph_output()):
        raise Mismatch(f"{g.describe(node)} returns its scores (qk)")
    return {
        "form": MULTI_HEAD,
        "node": g.describe(node),
        "query": query,
        "query_layout": "BSE",
        "output": output,
        "output_dtype": output.dtype or dtype,
        "num_heads": int(g.attribute(node, "num_heads", 0)),
        "scale": float(g.attribute(node, "scale", 0.0)) or head_dim**-0.5,
        "masks": _masks(node),
        "causal": bool(g.attribute(node, "unidirectional", 0)),
    }


def _outside(key: GrownCache, value: GrownCache) -> AttentionSite:
    """The node reads caches that ``Concat`` has grown."""
    node, dtype = key.reader, key.past.dtype or ir.DataType.FLOAT
    facts = _facts(node, key.head_dim, dtype)
    if facts["causal"]:
        raise Mismatch(f"{g.describe(node)} is unidirectional but does not know the past")
    return site_of(key, value, **facts)


def _inside(node: ir.Node) -> AttentionSite:
    """The node grows the cache itself."""
    past_key, past_value = slot(node, 6), slot(node, 7)
    if past_key is None or past_value is None or not past_key.is_graph_input():
        raise Mismatch(f"{g.describe(node)} has a past that is no graph input")
    presents = [g.returned(output) for output in node.outputs[1:3]]
    if len(presents) < 2 or presents[0] is None or presents[1] is None:
        raise Mismatch(f"{g.describe(node)} does not return present_key and present_value")
    key, value = slot(node, 1), slot(node, 2)
    if key is None or value is None or len(key.shape or (0,) * 3) != 3:
        raise Mismatch(f"{g.describe(node)} has packed keys and values")
    num_heads = int(g.attribute(node, "num_heads", 0))
    head_dim = g.static_dim(past_key, 3) or (width(key) or 0) // max(1, num_heads)
    if not num_heads or not head_dim:
        raise Mismatch(f"{g.describe(node)} has no fixed number of heads or head size")
    dtype = past_key.dtype or ir.DataType.FLOAT
    return AttentionSite(
        layer=-1,
        past_key=past_key,
        past_value=past_value,
        present_key=presents[0],
        present_value=presents[1],
        key=key,
        value=value,
        layout="BSE",
        dtype=dtype,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        rope_key=rope_key(key),
        **_facts(node, head_dim, dtype),
    )


def match(model: ir.Model, caches: list[GrownCache]) -> list[AttentionSite]:
    """Finds all F5 sites.

    Raises:
        UnsupportedModelError: the node has a cache, but not as this form has it.
    """
    mine = [cache for cache in caches if cache.reader.op_type == OP[1]]
    nodes = [node for node in model.graph if (node.domain, node.op_type) == OP]
    try:
        sites = [_outside(key, value) for key, value in pair_caches(mine, 1, 2)]
        return sites + [_inside(node) for node in nodes if slot(node, 6) or slot(node, 7)]
    except Mismatch as mismatch:
        raise mismatch.refusal(PATTERN) from None
