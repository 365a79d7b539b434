"""Fixtures of the exporter's tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers

VOCABULARY, HEADS, SIZE = 64, 2, 8


@pytest.fixture
def tiny_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers that only fill a cache: layer l keeps (l + 1) times an embedding, or its negative.

    Indirect parameters: ``fp32`` (default), ``fp16``, ``plain-names`` (as transformers' exporter).
    """
    variant = getattr(request, "param", "fp32")
    dtype = np.float16 if variant == "fp16" else np.float32
    kind = TensorProto.FLOAT16 if variant == "fp16" else TensorProto.FLOAT
    past, present = "past_key_values.{}.{}", "present.{}.{}"
    if variant == "plain-names":
        past = "input.past_key_values.layers.{}.{}s"
        present = "output.past_key_values.layers.{}.{}s"
    table = np.random.default_rng(7).standard_normal((VOCABULARY, HEADS * SIZE)).astype(dtype)
    constants = {"table": table, "split": np.array([1, -1, HEADS, SIZE])}
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["embedded"]),
        helper.make_node("Reshape", ["embedded", "split"], ["by_head"]),
        helper.make_node("Transpose", ["by_head"], ["new"], perm=[0, 2, 1, 3]),
    ]
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, "S"])
    inputs, outputs = [ids], []
    for layer in range(2):
        for name, sign in (("key", 1), ("value", -1)):
            tensor = f"{name}{layer}"
            constants[f"factor_{tensor}"] = np.array(sign * (layer + 1), dtype)
            ends = past.format(layer, name), present.format(layer, name)
            nodes += [
                helper.make_node("Mul", ["new", f"factor_{tensor}"], [tensor]),
                helper.make_node("Concat", [ends[0], tensor], [ends[1]], axis=2),
            ]
            inputs.append(helper.make_tensor_value_info(ends[0], kind, [1, HEADS, "P", SIZE]))
            outputs.append(helper.make_tensor_value_info(ends[1], kind, [1, HEADS, "T", SIZE]))
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    folder = tmp_path_factory.mktemp("tiny")
    onnx.save(model, folder / "model.onnx")
    words = {word: index for index, word in enumerate(["?", "word", *"abcde"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "model.onnx"
