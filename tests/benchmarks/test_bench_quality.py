"""The quality benchmark on tiny models, started as users start it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.runtime.tiny_model import write_tiny_model

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def folder(tmp_path: Path, ort_library: Path) -> Path:
    write_tiny_model(tmp_path / "exact", "exact")
    write_tiny_model(tmp_path / "paper", "slerp")
    random = np.random.default_rng(3)
    letters = np.array(list("abcdefgh \n"))
    documents = ["".join(letters[random.integers(0, 10, 700)]) for _ in range(12)]
    (tmp_path / "text.txt").write_text("\f".join(documents))
    return tmp_path


def run(folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / script), *arguments, "--threads", "1"]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


def test_quality_measures_resumes_and_extends(folder: Path) -> None:
    common = ["exact", "same=exact", "--text", "one=text.txt", "--text", "two=text.txt"]
    common += ["--context", "96", "--chunk", "8", "--documents", "2", "--json", "out.json"]
    common += ["--calibration-documents", "1"]
    first = run(folder, "bench_quality.py", *common)
    assert first.returncode == 0, first.stderr
    rows = (folder / "out.jsonl").read_text().splitlines()
    assert len(rows) == 4
    refused = run(folder, "bench_quality.py", *common)
    assert refused.returncode == 1 and "give --resume" in refused.stderr

    same = json.loads((folder / "out.json").read_text())["configurations"]["same"]
    assert (same["ratio"]["value"], same["kl"], same["top1"]) == (1.0, 0.0, 1.0)
    assert same["bits_per_element"] == 32 and same["compression_ratio"] == 0.5

    more = ["paper=paper", "--baseline", "static-int8", "--baseline", "static-int4-protected"]
    more += ["--resume", "--versus", "paper:static-int8"]
    second = run(folder, "bench_quality.py", *common[:2], *more, *common[2:])
    assert second.returncode == 0, second.stderr
    rows = (folder / "out.jsonl").read_text().splitlines()
    assert len(rows) == 4 * 4, "only what was missing"
    found = json.loads((folder / "out.json").read_text())
    table = found["configurations"]
    assert list(table) == ["same", "paper", "static-int8", "static-int4-protected"]
    assert table["static-int8"]["kl"] > 0 and table["static-int4-protected"]["kl"] > 0
    assert 0 < table["static-int8"]["ratio"]["low"] < table["static-int8"]["ratio"]["high"]
    assert list(found["versus"]) == ["paper:static-int8"]
    assert "perplexity of paper over static-int8" in second.stdout

    third = run(folder, "bench_quality.py", *common[:2], *more, *common[2:])
    assert third.stdout == second.stdout
    assert (folder / "out.jsonl").read_text().splitlines() == rows


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--chunk", "17", "paper=paper"], "more than the window of paper (16)"),
        (["--prefill", "96"], "--prefill must lie below --context"),
        (["same=exact", "same=paper"], "the same name"),
        (["--versus", "a:b"], "--versus a:b"),
        (["--resume"], "--resume needs --json"),
        (["paper"], "'paper' is not NAME=PATH"),
    ],
)
def test_contradictions_are_refused(folder: Path, arguments: list[str], message: str) -> None:
    common = ["exact", *arguments, "--text", "one=text.txt", "--context", "96"]
    found = run(folder, "bench_quality.py", *common)
    assert found.returncode != 0 and message in found.stderr
