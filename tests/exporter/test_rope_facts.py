"""What a graph's constants say of RoPE, and that damaged constants say nothing."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from minicache.exporter.find_attention import find_attention
from minicache.exporter.io import load_model, read_facts
from minicache.exporter.rope_facts import RopeFacts, find_rope
from tests.exporter.graphs import FIXTURES

TABLES = "genai-llama2-mha-cpu-fp32"


@pytest.mark.parametrize(
    ("name", "where", "rotary", "interleaved", "base"),
    [
        (TABLES, "op", 16, False, 1e4),
        ("onnx-qwen3-optimum-fp32", "graph", 32, None, 1e4),
        ("mob-llama3-gqa-default", "graph", 8, False, None),  # frequencies scaled as Llama 3 does
        ("onnx-llama3-gqa-dynamo-opset23", "graph", 8, False, None),
    ],
)
def test_rope_of_every_kind(
    name: str, where: str, rotary: int, interleaved: bool | None, base: float | None
) -> None:
    folder = FIXTURES / name
    site = find_attention(load_model(folder), read_facts(folder)).sites[0]
    rope = find_rope(site)
    assert rope is not None
    assert (rope.where, rope.rotary_dim, rope.interleaved) == (where, rotary, interleaved)
    assert len(rope.frequencies) == rotary // 2
    assert rope.base == (None if base is None else pytest.approx(base, rel=1e-3))


@pytest.mark.parametrize(
    "table",
    [
        np.full((512, 8), np.nan, np.float32),
        np.zeros((512, 8), np.int64),
        np.full((512, 8), "cos", object),
        np.zeros((1, 8), np.float32),
        np.zeros((8,), np.float32),
        np.zeros((512, 0), np.float32),
    ],
    ids=["nan", "int", "text", "one row", "one dimension", "empty"],
)
def test_damaged_tables_have_no_frequencies(table: np.ndarray) -> None:
    folder = FIXTURES / TABLES
    model = load_model(folder)
    site = find_attention(model, read_facts(folder)).sites[0]
    assert site.rope is not None
    if table.dtype == object:
        tensor: ir.TensorProtocol = ir.StringTensor(np.full(table.shape, b"cos"))
    else:
        tensor = ir.tensor(table)
    site.rope.cos.const_value = tensor
    rope = find_rope(site)
    assert rope is not None and rope.frequencies == () and rope.base is None


@pytest.mark.parametrize("second", [0.0, 1e-300, 1e-30, 1.0])
def test_a_base_that_nobody_means_is_none(second: float) -> None:
    assert RopeFacts("graph", 64, None, (1.0, second, *[second] * 30)).base is None
