"""Form F4 as onnxruntime-genai's builder writes it: packed projections, RoPE in the operator."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from benchmarks.synthetic.graph import Graph
from benchmarks.synthetic.sizes import EPSILON, Decoder, add_embedding, add_head, add_mlp

MICROSOFT = "com.microsoft"


def add_group_query(graph: Graph, decoder: Decoder) -> None:
    """Adds the whole decoder."""
    residual, branch = add_embedding(graph, decoder), ""
    lengths, total = _lengths(graph)
    angles = np.outer(np.arange(decoder.positions, dtype=np.float32), decoder.frequencies)
    tables = [graph.array("cos_cache", np.cos(angles)), graph.array("sin_cache", np.sin(angles))]
    wide = decoder.heads * decoder.head_dim
    packed = wide + 2 * decoder.kv_heads * decoder.head_dim
    for layer in range(decoder.layers):
        scope = f"/model/layers.{layer}"
        x, residual = _norm(graph, decoder, residual, branch, f"{scope}/input_layernorm")
        qkv = graph.project(x, f"{scope}/attn/qkv_proj", (decoder.hidden, packed))
        cache = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
        attention = f"{scope}/attn/GroupQueryAttention"
        graph.node(
            "GroupQueryAttention",
            [qkv, "", "", *cache, lengths, total, *tables],
            [f"{attention}/output_0", f"present.{layer}.key", f"present.{layer}.value"],
            attention,
            domain=MICROSOFT,
            num_heads=decoder.heads,
            kv_num_heads=decoder.kv_heads,
            scale=decoder.head_dim**-0.5,
            do_rotary=1,
        )
        shape = (wide, decoder.hidden)
        gain = decoder.residual_gain
        branch = graph.project(f"{attention}/output_0", f"{scope}/attn/o_proj", shape, gain)
        name = f"{scope}/post_attention_layernorm"
        x, residual = _norm(graph, decoder, residual, branch, name)
        branch = add_mlp(graph, decoder, x, f"{scope}/mlp")
    x, _ = _norm(graph, decoder, residual, branch, "/model/norm")
    add_head(graph, decoder, x)


def _lengths(graph: Graph) -> tuple[str, str]:
    """``seqlens_k`` int32 [B] (tokens less one) and ``total_sequence_length`` int32."""
    name = "/model/attn_mask_reformat"
    one = graph.constant(f"{name}/one", [1])
    valid = graph.add("ReduceSum", ["attention_mask", one], f"{name}/ReduceSum", keepdims=0)
    last = graph.add("Sub", [valid, one], f"{name}/Sub")
    shape = graph.add("Shape", ["attention_mask"], f"{name}/Shape")
    total = graph.add("Gather", [shape, graph.constant(f"{name}/axis", 1)], f"{name}/Gather")
    return (
        graph.add("Cast", [last], f"{name}/Sub/Cast", to=TensorProto.INT32),
        graph.add("Cast", [total], f"{name}/Gather/Cast", to=TensorProto.INT32),
    )


def _norm(graph: Graph, decoder: Decoder, residual: str, branch: str, name: str) -> tuple[str, str]:
    """The RMS norm of the sum, and the sum; without a branch that is the residual itself."""
    weight = graph.array(f"{name[1:]}.weight", np.ones(decoder.hidden, np.float32))
    if not branch:
        op = "SimplifiedLayerNormalization"
        return graph.add(op, [residual, weight], name, epsilon=EPSILON), residual
    outputs = [f"{name}_output_0", "", "", f"{name}_output_3"]
    inputs = [residual, branch, weight]
    op = "SkipSimplifiedLayerNormalization"
    graph.node(op, inputs, outputs, name, domain=MICROSOFT, epsilon=EPSILON)
    return outputs[0], outputs[3]
