"""The TensorRT sample: its commands are commands, and its script runs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from minicache.exporter.cli import build_parser
from tests.exporter.subspace_workplace import Workplace

FOLDER = Path(__file__).parents[2] / "samples" / "02_tensorrt"


def commands() -> list[list[str]]:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    lines = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    return [shlex.split(line) for line in lines]


def test_every_command_of_the_readme_is_one() -> None:
    """Parsed, not run: they need a GPU. The files named are there."""
    parser, seen = build_parser(), set()
    for program, *words in commands():
        if program == "minicache-export":
            parser.parse_args(["export", *words])
        elif program == "minicache":
            parser.parse_args(words)
            program = words[0]
        elif program == "python":
            assert (FOLDER / words[0]).is_file()
        seen.add(program)
    assert {"minicache-export", "build-engine", "generate", "kernels", "python", "pip"} <= seen


@pytest.mark.usefixtures("ort_library")
def test_the_script_continues_texts_of_different_lengths(tmp_path: Path) -> None:
    """On a CPU: the session's calls are the same. Side by side each text goes on as alone."""
    place = Workplace.make(tmp_path, "onnx-llama3-gqa-optimum-fp32")
    folder = place.export("out", mode="exact").folder

    def run(*texts: str) -> str:
        done = subprocess.run(
            [sys.executable, FOLDER / "generate_batch.py", folder, *texts, "--max-new-tokens", "6"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert f"{len(texts)} texts, " in done.stderr and "ms per step" in done.stderr
        return done.stdout

    texts = ["the cache", "of a decoder grows"]
    assert run(*texts) == "".join(run(text) for text in texts)


def test_the_script_tells_what_is_missing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, FOLDER / "generate_batch.py", tmp_path, "text"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("generate_batch.py: ") and done.stderr.count("\n") == 1
