"""Puts a ``MiniCacheAttention`` in ``exact`` mode in the place of every attention site."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from minicache.exporter import schemas
from minicache.exporter.build import Inserter
from minicache.exporter.graph import permutation, static_dim
from minicache.exporter.passes.add_runtime_inputs import BATCH, CAPACITY, SEQUENCE, RuntimeInputs
from minicache.exporter.sites import AttentionSite, ModelDescription, Rope

Dims: TypeAlias = list[int | str]
# Tokens that a session may take back; the ring of a sliding-window layer is this much longer.
REWIND_SLACK = 64


def state_name(group: int, name: str, present: bool = False) -> str:
    """Graph name of a state tensor."""
    return f"{'present' if present else 'past'}_minicache.{group}.{name}"


class ReplaceAttentionPass(ir.passes.InPlacePass):
    """Replaces the sites; ``nodes`` holds the new node of each, in layer order."""

    def __init__(self, description: ModelDescription, inputs: RuntimeInputs) -> None:
        super().__init__()
        self.description, self.inputs = description, inputs
        self.nodes: list[ir.Node] = []

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Inserts the nodes and moves the consumers of the old outputs to them."""
        model.opset_imports[schemas.DOMAIN] = schemas.VERSION
        if any(site.rope is not None for site in self.description.sites):
            model.opset_imports.setdefault("com.microsoft", 1)
        ids = self.description.input_ids
        self.nodes = [
            _replace(model.graph, site, self.inputs, ids) for site in self.description.sites
        ]
        return ir.passes.PassResult(model, modified=True)


def _replace(
    graph: ir.Graph, site: AttentionSite, inputs: RuntimeInputs, input_ids: ir.Value
) -> ir.Node:
    anchor = site.output.producer()
    assert anchor is not None
    b = Inserter(graph, anchor, f"layer{site.layer}")
    query, key, value = _operands(b, site, inputs)
    attributes = _attributes(site)
    slots: int | str = attributes["ring_slots"] if site.local_window else CAPACITY
    shape: Dims = [BATCH, 1, site.num_kv_heads, slots, site.head_dim]
    names = schemas.state_names(schemas.attributes_with_defaults(attributes))
    past = [_state(state_name(site.layer, name), site.dtype, shape) for name in names]
    present = [_state(state_name(site.layer, name, True), site.dtype, shape) for name in names]
    sinks = [] if site.head_sink is None else [_head_sink(b, site, site.head_sink)]
    joined: Dims = [BATCH, SEQUENCE, site.num_heads * site.head_dim]
    attention = _state(f"minicache/layer{site.layer}/attention", site.dtype, joined)
    node = b.insert(
        schemas.OP_TYPE,
        [query, key, value, inputs.past_lengths, inputs.total_lengths, *sinks, *past],
        [attention, *present],
        attributes,
        schemas.DOMAIN,
        name=f"minicache_attention_{site.layer}",
    )
    result = attention
    if site.output_dtype != site.dtype:
        to = {"to": site.output_dtype.value}
        result = b.node("Cast", [attention], site.output_dtype, joined, to)
    if _is_flat(site.output):
        flat = b.constant(f"flat_{joined[2]}", np.array([-1, joined[2]], np.int64))
        result = b.node("Reshape", [result, flat], site.output_dtype, [None, joined[2]])
    elif any(use.node.op_type == "Shape" for use in site.output.uses()):
        # ORT may know no dimensions behind a custom op and then refuses shapes computed from them.
        width = np.array([site.num_heads * site.head_dim], np.int64)
        tokens = b.node("Shape", [input_ids], ir.DataType.INT64, [2])
        parts = [tokens, b.constant(f"width_{width[0]}", width)]
        target = b.node("Concat", parts, ir.DataType.INT64, [3], {"axis": 0})
        result = b.node("Reshape", [result, target], site.output_dtype, joined)
    site.output.replace_all_uses_with(result)
    graph.inputs.extend(past)
    graph.outputs.extend(present)
    return node


def _is_flat(output: ir.Value) -> bool:
    """Whether consumers expect [B*S, H*D], as ``Gemm`` does."""
    if output.shape is not None:
        return len(output.shape) == 2
    return any(use.node.op_type == "Gemm" and use.idx == 0 for use in output.uses())


def _head_sink(b: Inserter, site: AttentionSite, sink: ir.Value) -> ir.Value:
    """The sink logits as [H]; exporters fold them into the shape of the scores."""
    tensor = ir.convenience.get_const_tensor(sink)
    if tensor is None or (len(tensor.shape) == 1 and tensor.dtype == site.dtype):
        return sink
    numbers = tensor.numpy().reshape(-1).astype(site.dtype.numpy())
    return b.constant(f"layer{site.layer}/head_sink", numbers)


def _state(name: str, dtype: ir.DataType, shape: Dims) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))


def _attributes(site: AttentionSite) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "num_heads": site.num_heads,
        "kv_num_heads": site.num_kv_heads,
        "head_size": site.head_dim,
        "mode": "exact",
        "scale": float(site.scale),
    }
    if site.softcap:
        attributes["softcap"] = float(site.softcap)
    if site.local_window:
        attributes["local_window_size"] = site.local_window
        attributes["ring_slots"] = site.local_window + REWIND_SLACK
    if site.head_sink is not None:
        attributes["has_sink"] = 1
    return attributes


def _operands(
    b: Inserter, site: AttentionSite, inputs: RuntimeInputs
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Query, key and value as [B, S, heads * D], rotated, in the type of the cache."""
    if site.layout == "packed":
        query, key, value = _split(b, site)
    elif site.layout == "BHSD":
        query = site.query
        if site.query_layout in ("", "BHSD"):
            query = _joined(b, site, site.query, site.num_heads)
        key = _joined(b, site, site.key, site.num_kv_heads)
        value = _joined(b, site, site.value, site.num_kv_heads)
    else:
        query, key, value = site.query, site.key, site.value
    for operand in (query, key, value):
        # Shape inference knows no com.microsoft operators; later passes ask for the type.
        if operand.dtype is None:
            operand.type = ir.TensorType(site.dtype)
    if site.rope is not None:
        query = _rotated(b, site, site.rope, query, site.num_heads, inputs)
        key = _rotated(b, site, site.rope, key, site.num_kv_heads, inputs)
    return query, key, value


def _split(b: Inserter, site: AttentionSite) -> list[ir.Value]:
    widths = [n * site.head_dim for n in (site.num_heads, site.num_kv_heads, site.num_kv_heads)]
    sizes = b.constant("split_" + "_".join(map(str, widths)), np.array(widths, np.int64))
    parts = [
        ir.Value(type=ir.TensorType(site.dtype), shape=ir.Shape([BATCH, SEQUENCE, width]))
        for width in widths
    ]
    b.insert("Split", [site.query, sizes], parts, {"axis": -1})
    return parts


def _joined(b: Inserter, site: AttentionSite, value: ir.Value, heads: int) -> ir.Value:
    """[B, heads, S, D] as [B, S, heads*D]; undoes a transpose instead of adding another."""
    width = heads * site.head_dim
    node = value.producer()
    if value.dtype is not None and value.dtype != site.dtype:
        given: Dims = [BATCH, heads, SEQUENCE, site.head_dim]
        value = b.node("Cast", [value], site.dtype, given, {"to": site.dtype.value})
        node = None
    swapped = node is not None and node.op_type == "Transpose" and permutation(node) == (0, 2, 1, 3)
    if swapped and node is not None and node.inputs[0] is not None:
        heads_last = node.inputs[0]
        reshape = heads_last.producer()
        if reshape is not None and reshape.op_type == "Reshape":
            source = reshape.inputs[0]
            if (
                source is not None
                and len(source.shape or ()) == 3
                and static_dim(source, 2) == width
            ):
                return source
    else:
        shape: Dims = [BATCH, SEQUENCE, heads, site.head_dim]
        heads_last = b.node("Transpose", [value], site.dtype, shape, {"perm": [0, 2, 1, 3]})
    target = b.constant(f"join_{width}", np.array([0, 0, width], np.int64))
    return b.node("Reshape", [heads_last, target], site.dtype, [BATCH, SEQUENCE, width])


def _rotated(
    b: Inserter, site: AttentionSite, rope: Rope, value: ir.Value, heads: int, inputs: RuntimeInputs
) -> ir.Value:
    attributes = {"interleaved": int(rope.interleaved), "num_heads": heads}
    if rope.rotary_dim != site.head_dim:
        attributes["rotary_embedding_dim"] = rope.rotary_dim
    return b.node(
        "RotaryEmbedding",
        [value, inputs.positions, rope.cos, rope.sin],
        site.dtype,
        [BATCH, SEQUENCE, heads * site.head_dim],
        attributes,
        "com.microsoft",
    )
