"""Every instruction set of the CPU kernel equals the reference, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

NEEDS = {
    "baseline": [],
    "avx2": ["avx2", "fma", "f16c"],
    "avx512": ["avx512f", "avx512bw", "avx512vl", "avx512dq"],
}
CASES = [
    "tests/plugins/test_ort_kernel.py::test_exact_mode",
    "tests/plugins/test_ort_kernel.py::test_slerp_codes",
    "tests/plugins/test_ort_contract.py::test_padding_is_never_read",
]


def cpu_flags() -> set[str]:
    """What the processor offers, from /proc/cpuinfo."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return set(line.split(":")[1].split())
    return set()


@pytest.mark.slow
@pytest.mark.parametrize("isa", list(NEEDS))
def test_instruction_set(ort_library: Path, isa: str) -> None:
    """MINICACHE_ISA is read once, with the first node, so each set gets a process of its own."""
    if missing := set(NEEDS[isa]) - cpu_flags():
        pytest.skip(f"this processor lacks {sorted(missing)}")
    environment = {**os.environ, "MINICACHE_ISA": isa, "MINICACHE_ORT_LIBRARY": str(ort_library)}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *CASES]
    root = Path(__file__).parents[2]
    run = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert "skipped" not in run.stdout
