"""The C interface of ``gpu_check.py``, on the fake CUDA driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugins.gpu.fake_driver import KEY, make_kernel, write_kernels

pytest.importorskip("torch", reason="the script needs PyTorch")
HERE = Path(__file__).parent


@pytest.mark.slow
def test_launches_arrive_as_they_were_planned(launcher_tools: Path, tmp_path: Path) -> None:
    """Every kind of argument, the grid, the stream (0x33); and errors come back as sentences."""
    pack, log = write_kernels(tmp_path, make_kernel()), tmp_path / "log"
    environment = {"LD_LIBRARY_PATH": str(launcher_tools), "FAKE_CUDA_LOG": str(log)}
    command = [sys.executable, HERE / "drive_check.py", pack.parent, f"{KEY}|hint=1",
               HERE.parents[2]]  # fmt: skip
    done = subprocess.run(
        [str(part) for part in command],
        env=os.environ | environment | {"FAKE_CUDA_CAPABILITY": "90"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    table, refusal = done.stdout.splitlines()
    assert table == "table True 0"
    assert refusal.startswith("kernel pack ") and "has no kernel 'none|hint=1'" in refusal
    launches = [line for line in log.read_text().splitlines() if " launch " in line]
    assert (
        launches
        == [
            "ctx1 launch sm_90_hint1 grid 2,3,4 block 128,1,1 shared 512 stream 33 extra 0 "
            "arguments p:fedc00000010000 i:-3 i:32 l:6000000000 f:0.5 p:0 p:0"
        ]
        * 2
    )
