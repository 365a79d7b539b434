"""F4: ``com.microsoft::GroupQueryAttention``, as the GenAI model builder and mobius write it.

Cache, softmax and mostly RoPE are inside the node; query, key and value come packed or apart::

    0 query  1 key  2 value  3 past_key  4 past_value  5 seqlens_k  6 total_sequence_length
    7 cos_cache  8 sin_cache  9 position_ids  10 attention_bias  11 head_sink  12.. scales, norms
"""

from __future__ import annotations

import onnx_ir as ir

from minicache.exporter import graph as g
from minicache.exporter.facts import ModelFacts
from minicache.exporter.forms.projection import slot, width
from minicache.exporter.sites import GROUP_QUERY, AttentionSite, MaskUse, Rope
from minicache.runtime.errors import UnsupportedModelError

OP = ("com.microsoft", "GroupQueryAttention")


def nodes(model: ir.Model) -> list[ir.Node]:
    """All ``GroupQueryAttention`` nodes of the main graph, in graph order."""
    return [node for node in model.graph if (node.domain, node.op_type) == OP]


def _refuse(node: ir.Node, what: str, remedy: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"{g.describe(node)} (F4) {what}; {remedy}")


def _check(node: ir.Node) -> None:
    """Refuses what the new op has no counterpart for."""
    plain = "export the model with the GenAI builder's default options"
    for name in ("k_quant_type", "v_quant_type"):
        kind = node.attributes.get(name)
        if kind is not None and kind.as_string() not in ("", "NONE"):
            raise _refuse(node, f"quantises its cache already ({name} {kind.as_string()!r})", plain)
    if any(slot(node, index) is not None for index in range(12, len(node.inputs))):
        raise _refuse(node, "has inputs after head_sink (cache scales or norms)", plain)
    for name, fine in (("smooth_softmax", (0, -1)), ("qk_output", (0,)), ("causal", (1,))):
        found = g.attribute(node, name, fine[0])
        if found not in fine:
            raise _refuse(node, f"has {name} {found}, which is not supported", plain)
    for index, name in ((3, "past_key"), (4, "past_value")):
        past = slot(node, index)
        if past is None or not past.is_graph_input():
            what = "absent" if past is None else f"{past.name!r}, not a graph input"
            raise _refuse(
                node, f"has {name} {what}", "export the model with its KV cache as inputs"
            )
    if len(node.outputs) < 3 or not all(value.is_graph_output() for value in node.outputs[1:3]):
        raise _refuse(node, "does not return present_key and present_value", plain)


def _head_dim(node: ir.Node, num_heads: int, num_kv_heads: int, facts: ModelFacts) -> int:
    """Head size: from the cache input, the projections, or the configuration, in this order."""
    past, query = node.inputs[3], node.inputs[0]
    assert past is not None and query is not None
    fixed = g.static_dim(past, 3)
    heads = num_heads if slot(node, 1) is not None else num_heads + 2 * num_kv_heads
    packed = width(query)
    rows = g.weight_rows(node.outputs[0])
    size = fixed or (packed // heads if packed else None) or (rows // num_heads if rows else None)
    size = size or facts.head_dim
    if not size:
        raise _refuse(
            node, "has no head size in the graph", "put genai_config.json or config.json beside it"
        )
    return size


def match(model: ir.Model, facts: ModelFacts) -> list[AttentionSite]:
    """Finds all F4 sites in graph order.

    Raises:
        UnsupportedModelError: a node uses something the new op has no counterpart for.
    """
    return [_site(node, facts) for node in nodes(model)]


def _site(node: ir.Node, facts: ModelFacts) -> AttentionSite:
    _check(node)
    query, past_key, past_value = node.inputs[0], node.inputs[3], node.inputs[4]
    assert query is not None and past_key is not None and past_value is not None
    num_heads = int(g.attribute(node, "num_heads", 0))
    num_kv_heads = int(g.attribute(node, "kv_num_heads", 0)) or num_heads
    if not num_heads:
        raise _refuse(node, "does not say its number of heads", "export the model again")
    head_dim = _head_dim(node, num_heads, num_kv_heads, facts)
    key, value = slot(node, 1), slot(node, 2)
    packed = key is None
    if not packed and value is None:
        raise _refuse(node, "has a key but no value", "export the model again")
    rope = None
    cos, sin = slot(node, 7), slot(node, 8)
    if g.attribute(node, "do_rotary", 0):
        half = g.static_dim(g.through_identity(cos), 1) if cos is not None else None
        if cos is None or sin is None or half is None:
            raise _refuse(node, "has do_rotary but no fixed cos_cache", "export the model again")
        rope = Rope(cos, sin, bool(g.attribute(node, "rotary_interleaved", 0)), 2 * half)
    bias = slot(node, 10)
    dtype = past_key.dtype or ir.DataType.FLOAT
    return AttentionSite(
        layer=-1,
        form=GROUP_QUERY,
        node=g.describe(node),
        past_key=past_key,
        past_value=past_value,
        present_key=node.outputs[1],
        present_value=node.outputs[2],
        query=query,
        key=query if key is None else key,
        value=query if value is None else value,
        layout="packed" if packed else "BSE",
        output=node.outputs[0],
        dtype=dtype,
        output_dtype=dtype,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        scale=float(g.attribute(node, "scale", 0.0)) or head_dim**-0.5,
        softcap=float(g.attribute(node, "softcap", 0.0)),
        local_window=max(0, int(g.attribute(node, "local_window_size", -1))),
        masks=[] if bias is None else [MaskUse(bias, "add", g.describe(node))],
        rope=rope,
        head_sink=slot(node, 11),
        causal=True,
        rope_key=(g.through_identity(cos).name or "") if rope and cos else "",
    )
