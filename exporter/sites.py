"""What ``find_attention`` finds: one ``AttentionSite`` per layer, and the model around them.

Layouts: ``BHSD`` is [batch, heads, tokens, head size]; ``BSE`` is [batch, tokens, heads * head
size]; ``packed`` is a BSE tensor that holds query, key and value heads one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

DECOMPOSED = "F1"  # MatMul, Softmax, MatMul around a Concat with the past
CONCAT_ATTENTION = "F2"  # ai.onnx::Attention behind a Concat with the past
ATTENTION = "F3"  # ai.onnx::Attention that grows the cache itself
GROUP_QUERY = "F4"  # com.microsoft::GroupQueryAttention
MULTI_HEAD = "F5"  # com.microsoft::MultiHeadAttention


@dataclass(frozen=True)
class MaskUse:
    """How a mask enters the scores.

    Attributes:
        value: the mask tensor, broadcast to [B, H, S, T].
        kind: ``add`` (0 or very negative), ``keep`` (true: visible), ``drop`` (true: hidden), or
            ``add or keep`` by its type (ai.onnx ``Attention``).
        node: name of the node that applies it, for messages.
    """

    value: ir.Value
    kind: str
    node: str


@dataclass(frozen=True)
class Rope:
    """Rotary embedding inside the attention op (F4); None on a site means it is outside.

    Attributes:
        cos: table [positions, rotary size / 2].
        sin: likewise.
        interleaved: pairs are (2i, 2i+1), not (i, i+n/2).
        rotary_dim: rotated components of a head.
    """

    cos: ir.Value
    sin: ir.Value
    interleaved: bool
    rotary_dim: int


@dataclass
class AttentionSite:
    """One attention layer of the original graph.

    Attributes:
        layer: index, as the cache names count.
        form: ``F1`` to ``F5``.
        node: name of a node at the site, for messages.
        past_key: graph input with the cached keys; likewise ``past_value``.
        present_key: graph output with the grown cache; likewise ``present_value``.
        query: new queries; with layout ``packed`` the tensor that holds all three.
        key: new keys as they enter the cache (before RoPE where ``rope`` is set).
        value: new values.
        layout: layout of keys and values, and of queries.
        output: attention output [B, S, H*D]; what consumes it stays.
        dtype: type of the cache, and so of the new op.
        output_dtype: type that consumers of ``output`` expect.
        num_heads: query heads H.
        num_kv_heads: kv heads Hk.
        head_dim: head size D.
        scale: score scale.
        softcap: 0 when off.
        local_window: sliding window; 0 when off. Where a mask says it, the mask probe sets it.
        masks: tensors that mask the scores.
        rope: rotary embedding to take out of the op.
        head_sink: a logit per head that joins the softmax sum.
        causal: the node hides the future by itself; masks may only hide more.
        query_layout: layout of queries where it is another one (F5).
        rope_key: what tells this layer's RoPE from other layers' ("" when there is none).
    """

    layer: int
    form: str
    node: str
    past_key: ir.Value
    past_value: ir.Value
    present_key: ir.Value
    present_value: ir.Value
    query: ir.Value
    key: ir.Value
    value: ir.Value
    layout: str
    output: ir.Value
    dtype: ir.DataType
    output_dtype: ir.DataType
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    softcap: float = 0.0
    local_window: int = 0
    masks: list[MaskUse] = field(default_factory=list)
    rope: Rope | None = None
    head_sink: ir.Value | None = None
    causal: bool = False
    query_layout: str = ""
    rope_key: str = ""


@dataclass
class ModelDescription:
    """A model whose attention is understood.

    Attributes:
        form: form of its sites; several are joined by ``+``.
        sites: one per layer, by layer index.
        dtype: type of the cache, as a NumPy-like name: fp32, fp16 or bf16.
        input_ids: graph input; likewise ``attention_mask`` and ``position_ids``, where present.
        logits: graph output.
        vocab_size: its last dimension.
        fixed_batch: 1 where the graph takes one row only; 0: any number.
        notes: remarks for the report.
    """

    form: str
    sites: list[AttentionSite]
    dtype: str
    input_ids: ir.Value
    attention_mask: ir.Value | None
    position_ids: ir.Value | None
    logits: ir.Value
    vocab_size: int
    fixed_batch: int = 0
    notes: list[str] = field(default_factory=list)
