"""The script for machines with a GPU, as far as it runs without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the script needs PyTorch")
pytest.importorskip("triton", reason="the script needs Triton")

ROOT = Path(__file__).parents[2]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs the script where only the checkout is to be found."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, ROOT / "benchmarks" / "gpu_check.py", *arguments]
    return subprocess.run(
        [str(part) for part in command],
        cwd=ROOT.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_walks_in_the_interpreter(tmp_path: Path) -> None:
    """Plan and launcher compile, and small walks through the plan match the reference."""
    report = tmp_path / "report.json"
    modes = ["sliding", "subspace", "evicting exact"]
    done = run("--interpret", "--modes", *modes, "--json", report)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads(report.read_text())
    assert [row["name"] for row in found["correctness"]] == modes
    for row in found["correctness"]:
        assert row["passed"] and 0 < row["error"] < row["tolerance"], row
    assert "all is well" in done.stdout


def test_without_a_gpu_it_says_so() -> None:
    done = run()
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: PyTorch sees no GPU here")
    assert len(done.stderr.splitlines()) == 1
