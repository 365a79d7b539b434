"""F2: ai.onnx ``Attention`` over a ``Concat`` with the past.

What ``torch.onnx`` and transformers' exporter write at opset 23 and 24. Per layer::

    present_key = Concat(past_key, key)            present_value = Concat(past_value, value)
    heads  = Attention(query, repeat_kv(present_key), repeat_kv(present_value), mask)   [B, H, S, D]
    output = Reshape(Transpose(heads))                                                  [B, S, H*D]

The cache inputs of ``Attention`` stay unused, so that it does not know the past: its own causal
masking would let the first new token see the first cached key only.
"""

from __future__ import annotations

import onnx_ir as ir

from minicache.exporter import graph as g
from minicache.exporter.forms.attention import check_attention, mask_use
from minicache.exporter.forms.grown_cache import (
    GrownCache,
    Mismatch,
    joined_heads,
    pair_caches,
    query_heads,
    site_of,
)
from minicache.exporter.sites import CONCAT_ATTENTION, AttentionSite

PATTERN = "ai.onnx Attention over Concat(past, new) (F2)"


def _site(key: GrownCache, value: GrownCache) -> AttentionSite:
    node = key.reader
    check_attention(node, "F2")
    query = node.inputs[0]
    if query is None or len(query.shape or (0,) * 4) != 4:
        raise Mismatch(f"{g.describe(node)} has a query that is not [B, H, S, D]")
    if g.attribute(node, "is_causal", 0):
        raise Mismatch(
            f"{g.describe(node)} has is_causal but does not know the past (its inputs are already "
            "concatenated), so that cached tokens would be masked"
        )
    output = joined_heads(node.outputs[0])
    dtype = key.past.dtype or ir.DataType.FLOAT
    return site_of(
        key,
        value,
        form=CONCAT_ATTENTION,
        node=g.describe(node),
        query=query,
        output=output,
        output_dtype=output.dtype or dtype,
        num_heads=query_heads(query, output, key.head_dim),
        scale=float(g.attribute(node, "scale", 0.0)) or key.head_dim**-0.5,
        softcap=float(g.attribute(node, "softcap", 0.0)),
        masks=mask_use(node, 3),
    )


def match(caches: list[GrownCache]) -> list[AttentionSite]:
    """Finds all F2 sites among the grown caches.

    Raises:
        UnsupportedModelError: ``Attention`` reads a cache in a way that this form does not have.
    """
    mine = [cache for cache in caches if cache.reader.op_type == "Attention"]
    try:
        return [_site(key, value) for key, value in pair_caches(mine, 1, 2)]
    except Mismatch as mismatch:
        raise mismatch.refusal(PATTERN) from None
