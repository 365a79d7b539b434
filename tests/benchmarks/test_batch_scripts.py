"""The scripts about batches and prefixes run, on tiny models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import bench_batch, check_batch, check_prefix
from tests.runtime.conftest import tiny_folder  # noqa: F401 - a fixture

Folder = Callable[..., Path]


def run(script: ModuleType, *words: object) -> int:
    try:
        script.main([str(word) for word in words])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


@pytest.fixture
def folders(tiny_folder: Folder, ort_library: Path) -> list[Path]:  # noqa: F811
    return [tiny_folder("exact"), tiny_folder("slerp")]


def test_check_batch(folders: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--longest", 40, "--new-tokens", 6, "--chunk", 16, "--prompts", 5, "--rows", 3]
    assert run(check_batch, *folders, *sizes) == 0
    shown = capsys.readouterr().out
    assert shown.count("5 of 5 prompts (3 to 40 tokens, 3 rows) give the same") == 2


def test_check_prefix(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check_prefix, "SETTLED", 4)
    assert run(check_prefix, folders[1], "--tokens", 80, "--drift", 20) == 0
    shown = capsys.readouterr().out
    assert "are those of the saved row; 5 of 5 bad files refused" in shown
    assert "after going back by 1, 12 and 62 tokens" in shown and "the state by" in shown


def test_bench_batch(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without processes of their own, which take long to start."""
    monkeypatch.setattr(bench_batch, "apart", lambda function, *arguments: function(*arguments))
    sizes = ["--rows", 1, 2, "--tokens", 20, "--steps", 4, "--budget", 1, "--context", 160]
    sizes += ["--short", 520, "--long", 600]
    exact, coded = folders
    assert run(bench_batch, "--exact", exact, "--coded", coded, *sizes) == 0
    shown = capsys.readouterr().out
    assert shown.count(" x\n") == 4 and f"{exact.name} as fp16" in shown
