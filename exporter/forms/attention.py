"""F3: ai.onnx ``Attention`` that grows the cache itself, as mobius writes it.

RoPE is outside; query, key and value have three dimensions (then the node says how many heads) or
four::

    0 query  1 key  2 value  3 attn_mask  4 past_key  5 past_value  6 nonpad_kv_seqlen
    outputs: 0 attention  1 present_key  2 present_value  3 qk_matmul_output
"""

from __future__ import annotations

import onnx_ir as ir

from minicache.exporter import graph as g
from minicache.exporter.forms.grown_cache import Mismatch, joined_heads
from minicache.exporter.forms.projection import slot, width
from minicache.exporter.forms.rope_key import rope_key
from minicache.exporter.sites import ATTENTION, AttentionSite, MaskUse
from minicache.runtime.errors import UnsupportedModelError

PATTERN = "ai.onnx Attention with past and present (F3)"


def check_attention(node: ir.Node, form: str) -> None:
    """Refuses what the new op has no counterpart for.

    Raises:
        UnsupportedModelError: names the node and what it has.
    """
    plain = "export the model for text generation with a growing cache"
    if slot(node, 6) is not None:
        raise UnsupportedModelError(
            f"{g.describe(node)} ({form}) reads nonpad_kv_seqlen: a static cache; {plain}"
        )
    if len(node.outputs) > 3 and (node.outputs[3].uses() or node.outputs[3].is_graph_output()):
        raise UnsupportedModelError(
            f"{g.describe(node)} ({form}) returns its scores (qk_matmul_output), which a "
            f"compressed cache does not form; {plain} and without attention weights as outputs"
        )


def mask_use(node: ir.Node, index: int) -> list[MaskUse]:
    """The mask in an input of a fused node: booleans keep, numbers are added."""
    mask = slot(node, index)
    return [] if mask is None else [MaskUse(mask, "add or keep", g.describe(node))]


def _heads(node: ir.Node, past: ir.Value, operand: ir.Value, name: str) -> int:
    """Heads of an operand, where it has four dimensions, else what the node says."""
    known = int(g.attribute(node, name, 0)) or g.static_dim(past, 1)
    if len(operand.shape or ()) == 4:
        known = g.static_dim(operand, 1) or known
    if not known:
        raise Mismatch(f"{g.describe(node)} does not say its number of heads ({name})")
    return known


def _site(node: ir.Node) -> AttentionSite:
    check_attention(node, "F3")
    query, key, value = node.inputs[0], node.inputs[1], node.inputs[2]
    past_key, past_value = slot(node, 4), slot(node, 5)
    assert query is not None and key is not None and value is not None
    for name, past in (("past_key", past_key), ("past_value", past_value)):
        if past is None or not past.is_graph_input():
            what = "no" if past is None else f"{past.name!r}, which is no graph input, as"
            raise Mismatch(f"{g.describe(node)} has {what} {name}")
    assert past_key is not None and past_value is not None
    presents = [g.returned(output) for output in node.outputs[1:3]]
    if len(presents) < 2 or presents[0] is None or presents[1] is None:
        raise Mismatch(f"{g.describe(node)} does not return present_key and present_value")
    four = len(query.shape or ()) == 4
    num_kv_heads = _heads(node, past_key, key, "kv_num_heads")
    num_heads = _heads(node, query if four else past_key, query, "q_num_heads")
    head_dim = g.static_dim(past_key, 3) or (width(key) or 0) // num_kv_heads
    value_dim = g.static_dim(past_value, 3) or head_dim
    if not head_dim or value_dim != head_dim:
        raise Mismatch(
            f"{g.describe(node)} has keys of size {head_dim or 'unknown'} and values of size "
            f"{value_dim or 'unknown'}, which must be known and equal"
        )
    output = joined_heads(node.outputs[0]) if four else node.outputs[0]
    dtype = past_key.dtype or ir.DataType.FLOAT
    return AttentionSite(
        layer=-1,
        form=ATTENTION,
        node=g.describe(node),
        past_key=past_key,
        past_value=past_value,
        present_key=presents[0],
        present_value=presents[1],
        query=query,
        key=key,
        value=value,
        layout="BHSD" if four else "BSE",
        output=output,
        dtype=dtype,
        output_dtype=output.dtype or dtype,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        scale=float(g.attribute(node, "scale", 0.0)) or head_dim**-0.5,
        softcap=float(g.attribute(node, "softcap", 0.0)),
        masks=mask_use(node, 3),
        causal=bool(g.attribute(node, "is_causal", 0)),
        rope_key=rope_key(key),
    )


def match(model: ir.Model) -> list[AttentionSite]:
    """Finds all F3 sites, in graph order.

    Raises:
        UnsupportedModelError: ``Attention`` has a cache, but not as this form has it.
    """
    nodes = [node for node in model.graph if (node.domain, node.op_type) == ("", "Attention")]
    try:
        return [_site(node) for node in nodes if slot(node, 4) or slot(node, 5)]
    except Mismatch as mismatch:
        raise mismatch.refusal(PATTERN) from None
