"""Loading and saving: damage is named, nothing is materialised, the source is untouched."""

from __future__ import annotations

import errno
import hashlib
import shutil
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from minicache.exporter import io
from minicache.runtime.errors import ModelFileError, OutputError
from tests.exporter.graphs import FIXTURES, decomposed_model

F4 = FIXTURES / "genai-llama2-mha-cpu-fp32"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of a fixture with external data, to be damaged."""
    return Path(shutil.copytree(F4, tmp_path / "model"))


def test_a_folder_stands_for_its_model() -> None:
    assert io.find_model_file(F4) == F4 / "model.onnx"


def test_external_data_stays_on_disk() -> None:
    model = io.load_model(F4)
    assert all(isinstance(t, ir.ExternalTensor) for t in io.external_tensors(model))
    assert io.weight_bytes(model) > 900_000


def test_missing_path(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="does not exist"):
        io.load_model(tmp_path / "nothing.onnx")


def test_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"no \.onnx file"):
        io.load_model(tmp_path)


def test_folder_with_several_models(tmp_path: Path) -> None:
    for name in ("prefill.onnx", "decode.onnx"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ModelFileError, match=r"decode\.onnx, prefill\.onnx"):
        io.load_model(tmp_path)


@pytest.mark.parametrize("content", [b"", b"this is a text, not a model\n", b"\x00" * 64])
def test_not_an_onnx_file(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(content)
    with pytest.raises(ModelFileError, match=r"model\.onnx"):
        io.load_model(file)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_truncated_model(copy: Path, share: float) -> None:
    file = copy / "model.onnx"
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ModelFileError):
        io.load_model(file)


def test_missing_external_data_names_file_and_tensor(copy: Path) -> None:
    (copy / "model.onnx.data").unlink()
    with pytest.raises(ModelFileError, match=r"model\.onnx\.data.*missing.*tensor"):
        io.load_model(copy)


def test_short_external_data_names_file_and_bytes(copy: Path) -> None:
    data = copy / "model.onnx.data"
    with data.open("r+b") as file:
        file.truncate(data.stat().st_size - 4)
    with pytest.raises(ModelFileError, match=r"bytes, but tensor"):
        io.load_model(copy)


def test_save_round_trip_leaves_the_source_alone(copy: Path, tmp_path: Path) -> None:
    digest = {p.name: hashlib.sha256(p.read_bytes()).digest() for p in copy.iterdir()}
    model = io.load_model(copy)
    written = io.save_model(model, tmp_path / "out")
    again = io.load_model(written)
    assert {p.name for p in written.parent.iterdir()} == {"model.onnx", "model.onnx.data"}
    for name, value in model.graph.initializers.items():
        other = again.graph.initializers[name].const_value
        assert value.const_value is not None
        assert other is not None
        np.testing.assert_array_equal(value.const_value.numpy(), other.numpy())
    assert digest == {p.name: hashlib.sha256(p.read_bytes()).digest() for p in copy.iterdir()}


def test_small_models_are_one_file(tmp_path: Path) -> None:
    io.save_model(decomposed_model(), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


def test_saving_over_the_source_is_refused(copy: Path) -> None:
    with pytest.raises(OutputError, match="another output folder"):
        io.save_model(io.load_model(copy), copy)


def test_a_full_disk_is_one_sentence(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ir, "save", full)
    with pytest.raises(OutputError, match="No space left on device; free some space"):
        io.save_model(io.load_model(copy), tmp_path / "out")


def test_facts_of_both_configuration_kinds() -> None:
    genai, hugging_face = io.read_facts(F4), io.read_facts(FIXTURES / "onnx-phi3-optimum-fp32")
    assert genai.head_dim == hugging_face.head_dim == 16
    assert genai.vocab_size == hugging_face.vocab_size == 512
    assert genai.max_positions
    assert hugging_face.max_positions


def test_facts_survive_a_broken_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    assert io.read_facts(tmp_path) == io.ModelFacts()
