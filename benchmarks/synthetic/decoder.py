"""Writes a decoder of any size with random weights, which never are in memory together.

The same sizes give the same bytes everywhere. A configuration and a tokenizer of one token per byte
lie beside the graph, so that texts can be read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import onnx
from onnx import TensorProto, helper
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks.synthetic.decomposed import add_decomposed
from benchmarks.synthetic.graph import Graph
from benchmarks.synthetic.group_query import MICROSOFT, add_group_query
from benchmarks.synthetic.sizes import Decoder

MODEL_NAME, DATA_NAME = "model.onnx", "model.onnx.data"


def write_decoder(decoder: Decoder, folder: Path) -> Path:
    """Writes the model.

    Args:
        decoder: its sizes and form.
        folder: made if it is not there.

    Returns:
        The path of ``model.onnx``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    opsets = [helper.make_opsetid("", 18)]
    with Graph(folder / DATA_NAME) as graph:
        if decoder.form == "F4":
            add_group_query(graph, decoder)
            opsets.append(helper.make_opsetid(MICROSOFT, 1))
        else:
            add_decomposed(graph, decoder)
    inputs, outputs = _signature(decoder)
    made = helper.make_graph(graph.nodes, "main_graph", inputs, outputs, graph.weights)
    onnx.save(helper.make_model(made, opset_imports=opsets, ir_version=8), folder / MODEL_NAME)
    _write_configuration(decoder, folder)
    _write_tokenizer(folder)
    return folder / MODEL_NAME


def _signature(decoder: Decoder) -> tuple[list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]:
    new, total = "sequence_length", "past_sequence_length + sequence_length"
    inputs = [_value("input_ids", ["batch_size", new], TensorProto.INT64)]
    inputs.append(_value("attention_mask", ["batch_size", total], TensorProto.INT64))
    if decoder.form == "F1":
        inputs.append(_value("position_ids", ["batch_size", new], TensorProto.INT64))
    outputs = [_value("logits", ["batch_size", new, decoder.vocabulary])]
    for layer in range(decoder.layers):
        for kind in ("key", "value"):
            shape = ["batch_size", decoder.kv_heads, "past_sequence_length", decoder.head_dim]
            inputs.append(_value(f"past_key_values.{layer}.{kind}", shape))
            shape[2] = total
            outputs.append(_value(f"present.{layer}.{kind}", shape))
    return inputs, outputs


def _value(
    name: str, shape: Sequence[int | str], kind: int = TensorProto.FLOAT
) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(shape))


def _write_configuration(decoder: Decoder, folder: Path) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": decoder.hidden,
        "head_dim": decoder.head_dim,
        "num_hidden_layers": decoder.layers,
        "num_attention_heads": decoder.heads,
        "num_key_value_heads": decoder.kv_heads,
        "intermediate_size": decoder.intermediate,
        "vocab_size": decoder.vocabulary,
        "max_position_embeddings": decoder.positions,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def _write_tokenizer(folder: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
