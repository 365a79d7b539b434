"""The table of models: one supported, one refused, one that answers too late."""

from __future__ import annotations

import json
import os
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from benchmarks import check_models

SUPPORTED = Path(__file__).parents[1] / "fixtures" / "onnx-llama2-mha-optimum-fp32"


@pytest.fixture
def refused(tmp_path: Path) -> Path:
    """A graph without a cache."""
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "sequence", 8])
    depth = helper.make_tensor("depth", TensorProto.INT64, [], [8])
    values = helper.make_tensor("values", TensorProto.FLOAT, [2], [0.0, 1.0])
    node = helper.make_node("OneHot", ["input_ids", "depth", "values"], ["logits"])
    graph = helper.make_graph([node], "bare", [ids], [logits], [depth, values])
    folder = tmp_path / "models" / "no|cache"
    folder.mkdir(parents=True)
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), folder / "model.onnx")
    return folder


def test_models_are_found_in_folders_of_folders(refused: Path) -> None:
    (refused / "other.onnx").touch()
    pair = refused.parent / "pair"
    pair.mkdir()
    for name in ("prefill.onnx", "decode.onnx"):
        (pair / name).touch()
    names = [file.relative_to(refused.parent).as_posix() for file in found(refused.parent)]
    assert names == ["no|cache/model.onnx", "pair/decode.onnx", "pair/prefill.onnx"]
    assert found(refused / "other.onnx") == [refused / "other.onnx"]


def found(path: Path) -> list[Path]:
    return check_models.find_models([path, path])


@pytest.mark.slow
def test_supported_and_refused_models_get_their_rows(
    refused: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows_file, table_file = tmp_path / "rows.json", tmp_path / "table.md"
    outputs = ["--json", str(rows_file), "--markdown", str(table_file)]
    assert check_models.main([str(SUPPORTED), str(refused), *outputs]) == 0
    good, bad = json.loads(rows_file.read_text())
    assert good["outcome"] == "supported"
    assert (good["form"], good["layers"], good["dtype"], good["windows"]) == ("F1", 4, "fp32", "")
    assert 0 <= good["batch_1"] <= good["tolerance"] and 0 < good["ragged"] <= good["tolerance"]
    assert good["top1"] == 1.0
    assert bad["outcome"] == "UnsupportedModelError" and "without a cache" in bad["sentence"]
    table = table_file.read_text()
    assert capsys.readouterr().out == table
    assert f"| {SUPPORTED.name} | F1 | 4 | fp32 |" in table
    assert "| no\\|cache | UnsupportedModelError | The graph has no past" in table
    assert table.endswith("1 supported, 1 UnsupportedModelError\n")


def test_a_bug_of_ours_is_a_row_that_names_the_place(
    refused: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: Path) -> dict[str, str]:
        raise KeyError(file.name)

    monkeypatch.setattr(check_models, "describe", fail)
    row = check_models.check_model(refused / "model.onnx")
    assert row["outcome"] == "crash"
    assert row["sentence"].startswith("KeyError at test_check_models.py:")


@pytest.mark.slow
def test_a_model_that_hangs_or_kills_its_process_costs_one_row(
    refused: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_models.main([str(refused), "--timeout", "0"]) == 1
    assert "| no\\|cache | timeout | no answer within 0 s |" in capsys.readouterr().out
    # Any function that raises in the other process will do.
    row = check_models.check_apart(refused / "model.onnx", 60.0, task=os._exit)
    assert (row["outcome"], row["sentence"]) == ("crash", "its process ended with 1")


def test_a_folder_without_models_is_a_wrong_argument(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        check_models.main([str(tmp_path)])
