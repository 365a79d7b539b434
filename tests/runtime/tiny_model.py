"""A two-layer random decoder in the exported form, with its manifest and a byte tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from minicache.exporter import schemas
from minicache.exporter.state_io import StateIo
from minicache.runtime.eviction.entry import EvictionEntry
from minicache.runtime.eviction.parse import parse_policy
from minicache.runtime.manifest import Manifest
from tests.byte_tokenizer import byte_tokenizer

LAYERS, HEADS, KV_HEADS, HEAD_DIM, HIDDEN, VOCABULARY = 2, 4, 2, 16, 32, 256
MAX_LENGTH = 160
WINDOW, SINKS, SLACK = 16, 2, 12
VARIANTS = ("exact", "slerp")
BASE = {"num_heads": HEADS, "kv_num_heads": KV_HEADS, "head_size": HEAD_DIM}
SLERP: dict[str, Any] = {
    "mode": "slerp",
    "group_size": LAYERS,
    "key_bits": [16, HEAD_DIM],
    "value_bits": [16, HEAD_DIM],
    "retention": "threshold",
    "retention_threshold": 0.0,  # random layers: about half of the tokens disagree
    "window": WINDOW,
    "sinks": SINKS,
    "ring_slots": WINDOW + SLACK,
}
RETAINED_FRACTION = 0.25


def write_tiny_model(
    folder: Path,
    variant: str = "exact",
    *,
    eos: tuple[int, ...] = (),
    logits_type: int = TensorProto.FLOAT,
    first_layer: Mapping[str, Any] | None = None,
    evict: str = "",
    **attributes: Any,
) -> Path:
    """Writes ``model.onnx``, ``minicache.json`` and ``tokenizer.json`` into ``folder``.

    Args:
        folder: made if it is missing.
        variant: ``exact``, or ``slerp`` (both layers in one group, with retention).
        eos: tokens that end a generation.
        logits_type: element type of the logits.
        first_layer: attributes of the first layer alone, for ``exact``.
        evict: policy by which tokens go.
        attributes: over the variant's own attributes of the op.
    """
    folder.mkdir(parents=True, exist_ok=True)
    given = {**BASE, **(SLERP if variant == "slerp" else {}), **attributes}
    if evict:
        given |= {"evicts": 1, "observes": parse_policy(evict).observes}
    slot = LAYERS - 1 if variant == "slerp" else 0
    exact_type = ir.DataType.FLOAT16 if variant == "slerp" else ir.DataType.FLOAT
    groups = 1 if variant == "slerp" else LAYERS
    by_layer = [{**given, **((not layer and first_layer) or {})} for layer in range(LAYERS)]
    by_group = [
        schemas.attributes_with_defaults({**by_layer[group], "group_slot": slot})
        for group in range(groups)
    ]
    complete = by_group[0]
    states = [StateIo(index, own, exact_type) for index, own in enumerate(by_group)]
    tensors = [tensor for state in states for tensor in state.tensors()]

    nodes, weights = _body(variant, by_layer, logits_type)
    inputs = [
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"]),
        helper.make_tensor_value_info("past_lengths", TensorProto.INT32, ["batch"]),
        helper.make_tensor_value_info("total_lengths", TensorProto.INT32, ["batch"]),
        helper.make_tensor_value_info("logit_positions", TensorProto.INT64, ["batch", "k"]),
    ]
    outputs = [helper.make_tensor_value_info("logits", logits_type, ["batch", "k", VOCABULARY])]
    for tensor in tensors:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype))
        inputs.append(helper.make_tensor_value_info(tensor.past, kind, tensor.shape))
        outputs.append(helper.make_tensor_value_info(tensor.present, kind, tensor.shape))
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(schemas.DOMAIN, schemas.VERSION)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / "model.onnx")

    eviction: dict[str, Any] = {}
    if evict:
        lengths = {group: 0 for group, own in enumerate(by_group) if own["evicts"]}
        tiled = complete["code_layout"] == "tile"
        eviction = EvictionEntry(parse_policy(evict), tiled, lengths).to_dict()
    sliding = complete["local_window_size"] > 0
    Manifest(
        model="model.onnx",
        target="ort-cpu",
        mode="paper" if variant == "slerp" else "exact",
        dtype="fp32",
        num_layers=LAYERS,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        vocab_size=VOCABULARY,
        max_sequence_length=MAX_LENGTH,
        rewind_slack=SLACK if variant == "slerp" or sliding or evict else MAX_LENGTH,
        window=complete["window"] if variant == "slerp" else 0,
        op_version=schemas.VERSION,
        eos_token_ids=eos,
        state=tuple(tensors),
        eviction=eviction,
        retained_fractions={state.retained_symbol: RETAINED_FRACTION for state in states},
        retained_extra={
            state.retained_symbol: schemas.retained_extra(state.attributes) for state in states
        },
    ).save(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def _body(
    variant: str, by_layer: Sequence[dict[str, Any]], logits_type: int
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    random = np.random.default_rng(7)
    weights: list[onnx.TensorProto] = []
    nodes: list[onnx.NodeProto] = []

    def weight(name: str, *shape: int, scale: float = 1.0) -> str:
        values = random.standard_normal(shape) * scale / np.sqrt(shape[0])
        weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def constant(name: str, value: Any, dtype: Any) -> str:
        weights.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def node(kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    # position of token i = past + i; padding may run beyond the table and is clipped
    zero, one, axis = (constant(n, v, np.int64) for n, v in (("c0", 0), ("c1", 1), ("ax", [1])))
    end = constant("last_position", MAX_LENGTH - 1, np.int64)
    width = node("Gather", [node("Shape", ["input_ids"], "shape"), one], "width")
    steps = node("Range", [zero, width, one], "steps")
    past = node("Cast", ["past_lengths"], "past", to=TensorProto.INT64)
    place = node("Add", [node("Unsqueeze", [past, axis], "past_column"), steps], "place_raw")
    place = node("Min", [place, end], "place")
    tokens = node("Gather", [weight("embedding", VOCABULARY, HIDDEN, scale=16.0), "input_ids"], "t")
    places = node("Gather", [weight("positions", MAX_LENGTH, HIDDEN, scale=6.0), place], "p")
    x = node("Add", [tokens, places], "x_0")
    earlier: list[str] = []
    for layer in range(LAYERS):
        query, key, value = (
            node(
                "MatMul", [x, weight(f"w{kind}_{layer}", HIDDEN, size * HEAD_DIM)], f"{kind}{layer}"
            )
            for kind, size in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))
        )
        group, slot = (0, layer) if variant == "slerp" else (layer, 0)
        attributes = {**by_layer[layer], "group_slot": slot}
        complete = schemas.attributes_with_defaults(attributes)
        names = schemas.state_names(complete)
        inputs = [query, key, value, "past_lengths", "total_lengths"]
        inputs += [f"past_minicache.{group}.{name}" for name in names]
        outputs = [f"attention_{layer}"]
        if schemas.is_writer(complete):
            inputs += earlier if variant == "slerp" else []
            outputs += [f"present_minicache.{group}.{name}" for name in names]
        earlier += [key, value]
        nodes.append(
            helper.make_node(
                schemas.OP_TYPE, inputs, outputs, f"attention_{layer}", domain=schemas.DOMAIN,
                **attributes,
            )
        )  # fmt: skip
        mixed = node(
            "MatMul", [outputs[0], weight(f"wo_{layer}", HEADS * HEAD_DIM, HIDDEN)], f"o{layer}"
        )
        x = node("Add", [x, mixed], f"x_{layer + 1}")
    index = node("Unsqueeze", ["logit_positions", constant("last", [2], np.int64)], "index")
    hidden = node("GatherND", [x, index], "hidden", batch_dims=1)
    wide = logits_type == TensorProto.FLOAT
    scores = node("MatMul", [hidden, weight("head", HIDDEN, VOCABULARY)], "logits" if wide else "s")
    if not wide:
        node("Cast", [scores], "logits", to=logits_type)
    return nodes, weights
