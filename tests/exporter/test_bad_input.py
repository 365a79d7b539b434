"""Input that is damaged, foreign or dangerous: one sentence, nothing lost, nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from minicache.exporter import ExportOptions, export_model, io
from minicache.exporter.cli import main
from minicache.exporter.facts import ModelFacts, read_facts
from minicache.exporter.package import check_output
from minicache.runtime.errors import (
    MiniCacheError,
    ModelFileError,
    OutputError,
    PackageError,
    PlanError,
    TextError,
)

FIXTURES = Path(__file__).parent.parent / "fixtures"
F1, F4 = FIXTURES / "onnx-llama3-gqa-optimum-fp32", FIXTURES / "genai-llama2-mha-cpu-fp32"
QUIET = ExportOptions(mode="exact", quiet=True)
PAPER = {"mode": "paper", "start_layer": 0, "verify_context": 32, "quiet": True}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of a fixture with external data."""
    return Path(shutil.copytree(F4, tmp_path / "model"))


def export(source: Path, output: Path, **options: Any) -> None:
    export_model(source, output, ExportOptions(**{**PAPER, **options}))


def write_tokenizer(folder: Path, first: int = 0) -> None:
    words = {word: first + index for index, word in enumerate(["?", *"abcdef"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))


def edit_first_tensor(folder: Path, change: Callable[[onnx.TensorProto], None]) -> None:
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    change(next(tensor for tensor in model.graph.initializer if tensor.external_data))
    onnx.save(model, folder / "model.onnx")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def locate(place: str) -> Callable[[onnx.TensorProto], None]:
    def change(tensor: onnx.TensorProto) -> None:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = place

    return change


@pytest.mark.parametrize("place", ["../outside.bin", "/etc/passwd", "a/../../outside.bin"])
def test_data_outside_the_folder_is_never_read(copy: Path, place: str) -> None:
    shutil.copy(copy / "model.onnx.data", copy.parent / "outside.bin")
    edit_first_tensor(copy, locate(place))
    with pytest.raises(ModelFileError, match="leads out of the model's folder"):
        io.load_model(copy)


def test_external_text_tensors_are_refused(copy: Path) -> None:
    edit_first_tensor(copy, lambda tensor: setattr(tensor, "data_type", onnx.TensorProto.STRING))
    with pytest.raises(ModelFileError, match="of type STRING"):
        io.load_model(copy)


def test_the_links_of_a_hugging_face_cache_are_followed(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    for name in ("model.onnx", "model.onnx.data"):
        shutil.copy(F4 / name, tmp_path / "blobs" / name[::-1])
        (tmp_path / "snapshot" / name).symlink_to(Path("../blobs") / name[::-1])
    shutil.copy(F4 / "genai_config.json", tmp_path / "snapshot")
    export(tmp_path / "snapshot", tmp_path / "out", verify_documents=0)
    assert (tmp_path / "out" / "model.onnx.data").stat().st_nlink == 1


def test_hard_linked_data_is_read(copy: Path) -> None:
    os.link(copy / "model.onnx.data", copy.parent / "second-name")
    export_model(copy, copy.parent / "out", QUIET)


def test_a_graph_that_does_not_fit_together_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx.load(F1 / "model.onnx")
    model.graph.node[5].output[0] = "elsewhere"
    onnx.save(model, tmp_path / "model.onnx")
    assert main(["export", str(tmp_path), "-o", str(tmp_path / "out"), "--quiet"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "which nothing gives" in line


def test_names_that_are_no_text_are_told(tmp_path: Path) -> None:
    content = (F1 / "model.onnx").read_bytes()
    (tmp_path / "model.onnx").write_bytes(content.replace(b"attention_mask", b"attention\xffmask"))
    with pytest.raises(ModelFileError, match="not UTF-8"):
        io.load_model(tmp_path)


def test_weights_that_are_no_numbers_prove_nothing(copy: Path) -> None:
    data = copy / "model.onnx.data"
    data.write_bytes(np.full(data.stat().st_size // 4, np.nan, np.float32).tobytes())
    with pytest.raises(ModelFileError, match="not finite"):
        export_model(copy, copy.parent / "out", QUIET)
    assert [path.name for path in copy.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("place", ["pipe", "x" * 5000, "nul\0", "odd\udcff"])
def test_odd_paths_are_refused_at_once(tmp_path: Path, place: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFileError):
        io.find_model_file(tmp_path / place)
    with pytest.raises(OutputError, match="name another folder"):
        check_output(tmp_path / place, overwrite=False)


@pytest.mark.parametrize(
    "content",
    ['{"text_config": []}', '{"num_attention_heads": "a"}', '{"n_positions": -1}', "[" * 100_000],
)
def test_configurations_of_wrong_types_count_as_absent(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    (tmp_path / "genai_config.json").write_text('{"model": {"decoder": "x"}}')
    assert read_facts(tmp_path) == ModelFacts()


@pytest.mark.parametrize("output", [".", "..", "link"])
def test_overwrite_never_destroys_the_input(copy: Path, output: str) -> None:
    (copy.parent / "minicache.json").write_text("{}")
    (copy / "minicache.json").write_text("{}")
    (copy / "link").symlink_to(copy)
    before = contents(copy.parent)
    with pytest.raises(OutputError, match="which the export reads"):
        export_model(copy, copy / output, ExportOptions(overwrite=True, quiet=True))
    assert contents(copy.parent) == before


def test_overwrite_replaces_exports_only(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(OutputError, match="it is no earlier export"):
        check_output(tmp_path, overwrite=True)


def test_a_link_to_nothing_is_no_output(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("gone")
    with pytest.raises(OutputError, match="link to nothing"):
        check_output(tmp_path / "out", overwrite=False)


def test_an_already_exported_folder_says_so(tmp_path: Path) -> None:
    export_model(F1, tmp_path / "out", QUIET)
    with pytest.raises(MiniCacheError, match="already an export"):
        export_model(tmp_path / "out", tmp_path / "again", QUIET)


@pytest.mark.parametrize(
    ("tokenizer", "text", "error", "message"),
    [
        (None, "a " * 90, PackageError, r"model' holds no tokenizer\.json"),
        ("garbage", "a " * 90, PackageError, r"model/tokenizer\.json' is not a tokenizer"),
        (5000, "a " * 90, PackageError, "gives token 5001, the model's vocabulary ends at 511"),
        (0, "a b", TextError, "longest document has 2 tokens"),
    ],
)
def test_tokenizer_and_text_are_checked_before_the_work(
    copy: Path, tokenizer: str | int | None, text: str, error: type[Exception], message: str
) -> None:
    """The message names the model's own files: the staging folder is gone when it is read."""
    if isinstance(tokenizer, int):
        write_tokenizer(copy, tokenizer)
    elif tokenizer:
        (copy / "tokenizer.json").write_text(tokenizer)
    (copy / "text.txt").write_text(text)
    with pytest.raises(error, match=message):
        export(copy, copy.parent / "a" / "out", verify_text=copy / "text.txt")
    assert [path.name for path in copy.parent.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_sequence_length": 0}, "--max-sequence-length is 0"),
        ({"max_sequence_length": 3}, "max sequence length is 3; give at least 16"),
        ({"window": 10**9}, "the window is 1000000000; give 0..512"),
        ({"sinks": 1 << 70}, "number of sinks is"),
        ({"rewind_slack": 10**9}, "rewind slack is 1000000000"),
        ({"verify_context": 1}, "--verify-context is 1"),
        ({"verify_documents": -1}, "--verify-documents is -1"),
        ({"retention": "none", "retention_capacity": float("nan")}, "--retention-capacity: nan"),
        ({"retention": "budget:0"}, "retention 'budget:0'"),
        ({"slerp_t": float("nan")}, "--slerp-t nan"),
    ],
)
def test_options_out_of_range(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        export(F4, tmp_path / "out", **{"verify_documents": 0, **options})
    assert list(tmp_path.iterdir()) == []


def test_the_smallest_capacity_is_proved_within_it(tmp_path: Path) -> None:
    export(F1, tmp_path / "out", max_sequence_length=16, verify_documents=0)
    manifest = json.loads((tmp_path / "out" / "minicache.json").read_text())
    assert manifest["max_sequence_length"] == 16


def test_brackets_in_a_path_are_no_markup(tmp_path: Path) -> None:
    assert main(["export", str(F1), "-o", str(tmp_path / "[" / "x]"), "--mode", "exact"]) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    script = (
        "import signal, sys, time; from minicache.exporter import cli, pipeline\n"
        # A shell without job control starts background jobs with SIGINT ignored, nohup with SIGHUP.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        "pipeline.check_parity = lambda *_: (print('now', flush=True), time.sleep(60))\n"
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", script, "export", str(F1), "-o", str(tmp_path / "a" / "out")]
    command += ["--mode", "exact"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "now\n"
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 128 + number and "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []
