"""Parts of a graph that are run to learn what they do."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from minicache.exporter.io import load_model
from minicache.exporter.probe import cut, evaluate

WEIGHT = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("data", ["model.onnx.data", "weights/all.bin"])
@pytest.mark.parametrize("linked", [False, True])
def test_weights_are_found_wherever_they_lie(tmp_path: Path, data: str, linked: bool) -> None:
    """In a folder below the model's, or in a file with another name somewhere else."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weight"], ["y"])],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])],
        [numpy_helper.from_array(WEIGHT, "weight")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    (tmp_path / data).parent.mkdir(exist_ok=True)
    onnx.save_model(
        model, tmp_path / "model.onnx", save_as_external_data=True, location=data, size_threshold=0
    )
    if linked:
        os.link(tmp_path / data, tmp_path / "second-name")
    loaded = load_model(tmp_path / "model.onnx")
    x = np.ones((2, 3), np.float32)
    (found,) = evaluate(loaded, [loaded.graph.outputs[0]], {loaded.graph.inputs[0]: x})
    np.testing.assert_array_equal(found, x @ WEIGHT)


@pytest.mark.parametrize("ids", [[0, 0], [0, 2]])
def test_tables_of_embeddings_give_their_rows(ids: list[int]) -> None:
    """Those of which only row 0 is asked are cut down to it first; others are not."""
    graph = helper.make_graph(
        [helper.make_node("Gather", ["weight", "ids"], ["y"])],
        "embedding",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])],
        [numpy_helper.from_array(WEIGHT, "weight")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    loaded = ir.from_proto(model)
    feeds = {loaded.graph.inputs[0]: np.array(ids, np.int64)}
    proto, _, _ = cut(loaded, loaded.graph.outputs, feeds)
    assert list(proto.graph.initializer[0].dims) == ([1, 4] if not any(ids) else [3, 4])
    (found,) = evaluate(loaded, loaded.graph.outputs, feeds)
    np.testing.assert_array_equal(found, WEIGHT[ids])
