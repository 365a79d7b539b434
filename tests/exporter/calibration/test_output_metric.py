"""The output projection is found and measured, whatever its kind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from minicache.exporter.calibration.exact_layers import find_exact_layers
from minicache.exporter.calibration.output_metric import output_metric
from minicache.exporter.io import load_model
from minicache.exporter.normalise import normalise

FIXTURES = Path(__file__).parents[2] / "fixtures"


def weight_of(layer_output: ir.Value) -> np.ndarray:
    node = layer_output.uses()[0].node
    while node.op_type != "MatMul":
        node = node.outputs[0].uses()[0].node
    tensor = ir.convenience.get_const_tensor(node.inputs[1])
    assert tensor is not None
    return tensor.numpy().astype(np.float64)


@pytest.mark.parametrize("name", ["onnx-llama3-gqa-optimum-fp32", "onnx-llama3-gqa-optimum-fp16"])
def test_matmul(name: str) -> None:
    model = normalise(load_model(FIXTURES / name)).model
    layer = find_exact_layers(model)[1]
    metric, note = output_metric(model, layer)
    weight = weight_of(layer.node.outputs[0])
    shared = layer.num_heads // layer.num_kv_heads
    heads = weight.reshape(layer.num_kv_heads, shared, layer.head_dim, -1)
    expected = np.einsum("hgie,hgje->hij", heads, heads)
    assert note == ""
    np.testing.assert_allclose(metric, expected, rtol=1e-3, atol=1e-6 * expected.max())


def test_four_bit_weights() -> None:
    model = normalise(load_model(FIXTURES / "genai-llama3-gqa-h16-cpu-int4")).model
    layer = find_exact_layers(model)[0]
    metric, note = output_metric(model, layer)
    assert note == "" and layer.node.outputs[0].uses()[0].node.op_type == "MatMulNBits"
    assert metric.shape == (layer.num_kv_heads, layer.head_dim, layer.head_dim)
    assert (np.linalg.eigvalsh(metric) > -1e-6).all()
    assert not np.allclose(metric[0], np.eye(layer.head_dim))


def test_another_consumer_gives_the_identity_and_a_note() -> None:
    model = normalise(load_model(FIXTURES / "onnx-llama3-gqa-optimum-fp32")).model
    layer = find_exact_layers(model)[2]
    output = layer.node.outputs[0]
    gate = ir.Node("", "Sigmoid", [output], name="gate")
    for use in list(output.uses()):
        if use.node is not gate:
            use.node.replace_input_with(use.idx, gate.outputs[0])
    model.graph.insert_after(layer.node, gate)
    metric, note = output_metric(model, layer)
    assert "layer 2" in note and "Sigmoid" in note
    np.testing.assert_array_equal(metric[0], np.eye(layer.head_dim))
