"""Projections and RoPE are read from a graph by what it computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from benchmarks.rivals.projections import read_projections, read_ropes
from minicache.runtime.errors import UnsupportedModelError
from tests.runtime.tiny_model import HEAD_DIM, HIDDEN, KV_HEADS, LAYERS, write_tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "exact", "exact")


def edit(
    folder: Path, layer: int, kind: str, tail: list[onnx.NodeProto], **weights: np.ndarray
) -> None:
    """Puts nodes behind a projection, from ``raw`` to what the attention reads."""
    model = onnx.load(folder / "model.onnx")
    nodes = list(model.graph.node)
    place = next(i for i, node in enumerate(nodes) if node.output[0] == f"{kind}{layer}")
    nodes[place].output[0] = "raw"
    for offset, node in enumerate(tail):
        model.graph.node.insert(place + 1 + offset, node)
    for name, value in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    onnx.save(model, folder / "model.onnx")


def weights_of(folder: Path) -> dict[str, np.ndarray]:
    graph = onnx.load(folder / "model.onnx").graph
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}


def test_weights_are_found(folder: Path) -> None:
    found, weights = read_projections(folder), weights_of(folder)
    assert len(found) == LAYERS
    for layer, projection in enumerate(found):
        np.testing.assert_allclose(projection.key, weights[f"wk_{layer}"], atol=1e-5)
        np.testing.assert_allclose(projection.value, weights[f"wv_{layer}"], atol=1e-5)
        assert not projection.key_bias.any() and not projection.value_bias.any()
        np.testing.assert_array_equal(projection.gain, np.ones(HIDDEN))


def test_a_bias_is_told_from_the_weight(folder: Path) -> None:
    bias = np.arange(KV_HEADS * HEAD_DIM)
    edit(folder, 1, "v", [helper.make_node("Add", ["raw", "bias"], ["v1"])], bias=bias)
    found = read_projections(folder)[1]
    np.testing.assert_allclose(found.value_bias, bias, atol=1e-5)
    np.testing.assert_allclose(found.value, weights_of(folder)["wv_1"], atol=1e-5)


def test_a_norms_weight_is_found_and_can_be_moved_into_the_projections(folder: Path) -> None:
    gain = np.linspace(0.5, 2, HIDDEN).astype(np.float32)
    model = onnx.load(folder / "model.onnx")
    readers = [node for node in model.graph.node if node.output[0] in ("q1", "k1", "v1")]
    place = list(model.graph.node).index(readers[0])
    model.graph.node.insert(
        place, helper.make_node("Mul", ["gain", readers[0].input[0]], ["scaled"])
    )
    for node in readers:
        node.input[0] = "scaled"
    model.graph.initializer.append(numpy_helper.from_array(gain, "gain"))
    onnx.save(model, folder / "model.onnx")
    found = read_projections(folder)[1]
    np.testing.assert_array_equal(found.gain, gain)
    x = np.random.default_rng(0).standard_normal((3, HIDDEN)).astype(np.float32)
    plain = found.without_gain()
    np.testing.assert_allclose(x @ plain.key, (x * gain) @ found.key, atol=1e-4)


def test_keys_that_are_no_linear_function_are_refused(folder: Path) -> None:
    edit(folder, 0, "k", [helper.make_node("Tanh", ["raw"], ["k0"])])
    with pytest.raises(UnsupportedModelError, match="keys of layer 0 are no linear function"):
        read_projections(folder)


def test_values_without_a_projection_are_refused(folder: Path) -> None:
    edit(folder, 0, "v", [helper.make_node("Tanh", ["raw"], ["v0"])])
    with pytest.raises(UnsupportedModelError, match=r"values of layer 0 come from .*Tanh"):
        read_projections(folder)


def test_absolute_positions_are_no_rope(folder: Path) -> None:
    """The tiny model adds a position's vector to the input: no rotation explains its keys."""
    with pytest.raises(
        UnsupportedModelError, match=r"keys of layers \[0, 1\] depend on the position"
    ):
        read_ropes(folder, 64)


def test_keys_without_positions_have_no_rope(folder: Path) -> None:
    model = onnx.load(folder / "model.onnx")
    for tensor in model.graph.initializer:
        if tensor.name == "positions":
            tensor.CopyFrom(numpy_helper.from_array(0 * numpy_helper.to_array(tensor), "positions"))
    onnx.save(model, folder / "model.onnx")
    assert {rope.kind for rope in read_ropes(folder, 64)} == {"none"}
