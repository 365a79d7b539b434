"""Threads share a launcher."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugins.gpu.fake_driver import (
    KEY,
    build_tools,
    drive,
    make_kernel,
    write_kernels,
)

THREADS, TIMES = 8, 50
LAUNCH = f"{KEY}|hint=1 1 1 1 p:10000 i:1 i:32 l:1 f:1"


def check_threads(tools: Path, folder: Path) -> None:
    """Eight threads in two contexts: two loads, two uploads, every launch."""
    pack = write_kernels(folder, make_kernel())
    lines = [f"pack {pack}", f"threads {THREADS} {TIMES} launch {LAUNCH}", "close"]
    answers, calls = drive(tools, lines, log=folder / "log", capability=86)
    assert answers == ["ok"] * 3
    verbs = [tuple(call.split()[:2]) for call in calls]
    for context in ("ctx1", "ctx2"):
        assert verbs.count((context, "launch")) == THREADS * TIMES // 2
        for once in ("load", "unload", "allocate", "copy", "free"):
            assert verbs.count((context, once)) == 1, once


def test_threads_in_two_contexts(launcher_tools: Path, tmp_path: Path) -> None:
    """Each module is loaded once per context, whoever comes first."""
    check_threads(launcher_tools, tmp_path)


@pytest.mark.slow
def test_threads_under_the_thread_sanitizer(tmp_path: Path) -> None:
    """No data race; skips where the compiler has no such sanitizer."""
    try:
        build_tools(tmp_path, "-fsanitize=thread")
    except AssertionError as error:
        if "tsan" in str(error):
            pytest.skip("the compiler has no thread sanitizer")
        raise
    check_threads(tmp_path, tmp_path / "pack")
