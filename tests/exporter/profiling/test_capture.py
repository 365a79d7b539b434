"""Reading keys and values from the original graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from minicache.exporter.profiling.capture import capture_key_values
from minicache.runtime.errors import ModelFileError, TextError, UnsupportedModelError


def test_keys_and_values_by_layer_and_token(tiny_model: Path) -> None:
    table = onnx.numpy_helper.to_array(onnx.load(tiny_model).graph.initializer[0])
    keys, values = capture_key_values(tiny_model, [[1, 2, 3], [4]])
    assert [layer.shape for layer in keys] == [(4, 2, 8)] * 2
    expected = table[[1, 2, 3, 4]].reshape(4, 2, 8)
    np.testing.assert_array_equal(keys[0], expected)
    np.testing.assert_array_equal(keys[1], 2 * expected)
    np.testing.assert_array_equal(values[0], -expected)


@pytest.mark.parametrize("tiny_model", ["fp16", "plain-names"], indirect=True)
def test_other_types_and_names(tiny_model: Path) -> None:
    keys, _ = capture_key_values(tiny_model.parent, [[1, 2, 3]])
    assert keys[1].dtype == np.float32 and keys[1].shape == (3, 2, 8)


def test_stops_at_max_tokens(tiny_model: Path) -> None:
    keys, _ = capture_key_values(tiny_model, [[1, 2, 3], [4, 5, 6]], max_tokens=4)
    assert len(keys[0]) == 4


def test_errors_name_the_cause(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(TextError, match="no tokens"):
        capture_key_values(tiny_model, [])
    with pytest.raises(TextError, match="99999"):
        capture_key_values(tiny_model, [[99999]])
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    with pytest.raises(ModelFileError, match="cannot load"):
        capture_key_values(tmp_path / "broken.onnx", [[1]])
    model = onnx.load(tiny_model)
    del model.graph.output[:]
    model.graph.output.append(onnx.helper.make_empty_tensor_value_info("logits"))
    onnx.save(model, tmp_path / "bare.onnx")
    with pytest.raises((UnsupportedModelError, ModelFileError)):
        capture_key_values(tmp_path / "bare.onnx", [[1]])
