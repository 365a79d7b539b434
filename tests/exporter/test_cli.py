"""The command line: one sentence per error, the right exit code, nothing left behind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from minicache.exporter.cli import build_parser, export_main, main

FIXTURE = Path(__file__).parent.parent / "fixtures" / "onnx-llama3-gqa-optimum-fp32"


@pytest.fixture
def no_cache_model(tmp_path: Path) -> Path:
    """A decoder exported without past and present."""
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["b", "s"])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", "s"])
    node = helper.make_node("Cast", ["input_ids"], ["logits"], to=TensorProto.FLOAT)
    graph = helper.make_graph([node], "g", [ids], [logits])
    path = tmp_path / "nocache" / "model.onnx"
    path.parent.mkdir()
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


def run_export(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = export_main([str(argument) for argument in arguments])
    return code, capsys.readouterr().err.strip()


def assert_user_error(code: int, output: str, *words: str) -> None:
    """The last line is the one sentence; lines before it only tell finished steps."""
    assert code == 2, output
    *steps, message = output.splitlines()
    assert all("done in" in step or " of " in step for step in steps), output
    assert message.startswith("minicache: ")
    assert "Traceback" not in message
    for word in words:
        assert word in message, message


def test_a_missing_model_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, message = run_export(capsys, tmp_path / "none.onnx", "-o", tmp_path / "out")
    assert_user_error(code, message, "none.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_text_file_is_not_a_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_text("hello, this is not a protobuf\n" * 20)
    code, message = run_export(capsys, tmp_path / "model.onnx", "-o", tmp_path / "out")
    assert_user_error(code, message, "model.onnx")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_truncated_model_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, share: float
) -> None:
    content = (FIXTURE / "model.onnx").read_bytes()
    (tmp_path / "model.onnx").write_bytes(content[: int(share * len(content))])
    code, message = run_export(capsys, tmp_path / "model.onnx", "-o", tmp_path / "out")
    assert_user_error(code, message, "model.onnx")
    assert not (tmp_path / "out").exists()


def test_a_model_without_cache_gets_the_command_that_makes_one(
    capsys: pytest.CaptureFixture[str], no_cache_model: Path, tmp_path: Path
) -> None:
    code, message = run_export(capsys, no_cache_model, "-o", tmp_path / "out")
    assert_user_error(code, message, "text-generation-with-past")


def test_an_existing_output_is_not_touched(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("keep")
    code, message = run_export(capsys, FIXTURE, "-o", tmp_path / "out")
    assert_user_error(code, message, "exists already", "--overwrite")
    assert (tmp_path / "out" / "mine").read_text() == "keep"


def test_contradicting_options_are_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, message = run_export(
        capsys, FIXTURE, "-o", tmp_path / "out", "--mode", "paper", "--start-layer", "77"
    )
    assert_user_error(code, message, "--start-layer 77")


def test_more_positions_than_the_model_has_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, message = run_export(
        capsys, FIXTURE, "-o", tmp_path / "out", "--max-sequence-length", "10000000"
    )
    assert_user_error(code, message, "--max-sequence-length 10000000")


@pytest.mark.parametrize(
    "arguments",
    [["export"], ["export", "m", "-o", "o", "--mode", "best"], ["frobnicate"], []],
)
def test_wrong_usage_exits_with_two(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as error:
        build_parser().parse_args(arguments)
    assert error.value.code == 2


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, message = run_export(capsys, tmp_path / "none.onnx", "-o", tmp_path / "out", "--debug")
    assert code == 2
    assert "Traceback" in message


def test_inspect_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(FIXTURE), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["num_layers"] >= 2


def test_inputs_are_never_modified(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The export may read the model's folder, but must not write to it."""
    source = tmp_path / "source"
    shutil.copytree(FIXTURE, source)
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    arguments = source, "-o", tmp_path / "out", "--mode", "exact", "--quiet"
    code, message = run_export(capsys, *arguments)
    assert code == 0, message
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before
