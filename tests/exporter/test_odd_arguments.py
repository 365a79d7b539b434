"""Odd arguments of the command line: one sentence, exit code 2, and nothing left behind."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from minicache.exporter.cli import main
from tests.exporter.test_bad_input import write_tokenizer

FIXTURE = Path(__file__).parent.parent / "fixtures" / "genai-llama2-mha-cpu-fp32"
FILES: dict[str, bytes] = {
    "binary": bytes(range(256)) * 40,
    "empty": b"",
    "zeros": bytes(10_000),
    "utf16": "a b c".encode("utf-16"),
    "deep.json": b"[" * 100_000,
    "list.json": b"[1, 2]",
    "number.json": b"9" * 6000,
    "huge.json": b'{"groups": [{"layers": [0, 1000000000000000000000000000000]}]}',
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tokenizer, and files of all kinds beside it."""
    folder = tmp_path_factory.mktemp("odd")
    shutil.copytree(FIXTURE, folder / "model")
    write_tokenizer(folder / "model")
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    (folder / "folder").mkdir()
    (folder / "circle").symlink_to("circle")
    os.mkfifo(folder / "pipe")
    return folder


def refuse(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: object) -> str:
    """Runs an export that must be refused; returns its sentence."""
    before = sorted(folder.rglob("*"))
    code = main(["export", str(folder / "model"), "--quiet", *map(str, arguments)])
    (line,) = capsys.readouterr().err.splitlines()
    assert code == 2 and line.startswith("minicache: ") and len(line) < 750
    assert sorted(folder.rglob("*")) == before
    return line


@pytest.mark.parametrize("name", [*FILES, "folder", "circle", "none", "x" * 5000, "nul\0"])
@pytest.mark.parametrize("option", ["--plan", "--calibration", "--text"])
def test_files_that_are_none(
    capsys: pytest.CaptureFixture[str], folder: Path, option: str, name: str
) -> None:
    if option == "--text":
        options = ["--mode", "paper", "--start-layer", "0", "--verify-context", "32"]
    else:
        options = ["--ratio", "4"] if option == "--calibration" else []
    line = refuse(capsys, folder, "-o", folder / "out", option, folder / name, *options)
    if name in ("folder", "circle", "none", "deep.json", "binary"):
        assert name in line or (option != "--plan" and name == "deep.json")


@pytest.mark.parametrize(
    "output",
    [
        *("empty", "empty/x", "circle", "circle/x", "pipe", "model", "model/model.onnx"),
        *("x" * 5000, "y" * 300, "nul\0", "odd\udcff", "/dev/null", "/dev/null/x", "/proc/x"),
        *("/", ".", ""),
    ],
)
def test_outputs_that_cannot_be(
    capsys: pytest.CaptureFixture[str], folder: Path, output: str
) -> None:
    place = output if output in ("/", ".", "") or output.startswith("/") else folder / output
    line = refuse(capsys, folder, "-o", place, "--mode", "exact")
    assert "another" in line or "is a file; name a folder" in line


@pytest.mark.parametrize(
    "options",
    [
        ["--ratio", "nan"],
        ["--ratio", "1e999"],
        ["--kv-bytes-per-token", "-5"],
        ["--max-kl", "nan"],
        ["--max-group-size", "9" * 30],
        ["--calibration-tokens", "0"],
        ["--plan-minutes", "nan"],
        ["--max-sequence-length", "9" * 40],
        ["--rewind-slack", "-1"],
        ["--window", "9" * 30],
        ["--verify-context", "-4"],
        ["--verify-documents", "-1"],
    ],
)
def test_numbers_beyond_reason(
    capsys: pytest.CaptureFixture[str], folder: Path, options: list[str]
) -> None:
    line = refuse(capsys, folder, "-o", folder / "out", *options)
    assert "give" in line or "choose" in line
