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
    "avx512vnni": ["avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"],
}
CASES = [
    "tests/plugins/test_ort_kernel.py::test_exact_mode",
    "tests/plugins/test_ort_kernel.py::test_slerp_codes",
    "tests/plugins/test_ort_prefill.py",
    "tests/plugins/test_ort_contract.py::test_padding_is_never_read",
    "tests/plugins/test_ort_maths.py::test_slerp_codes",
    "tests/plugins/test_ort_maths.py::test_slerp_variants",
]
DELTA_CASES = [
    "tests/plugins/test_ort_delta.py::test_codes",
    "tests/plugins/test_ort_delta.py::test_integers",
    "tests/plugins/test_ort_delta.py::test_any_lengths",
    "tests/plugins/test_ort_delta_contract.py::test_degenerate_vectors",
]
SUBSPACE_CASES = [
    "tests/plugins/test_ort_subspace.py::test_different_codes_for_keys_and_values",
    "tests/plugins/test_ort_subspace.py::test_partial_rotary",
    "tests/plugins/test_ort_subspace_contract.py::test_unusual_vectors",
    "tests/plugins/test_ort_maths.py::test_subspace_codes",
    "tests/plugins/test_ort_maths.py::test_subspace_shapes",
]


def cpu_flags() -> set[str]:
    """What the processor offers, from /proc/cpuinfo."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return set(line.split(":")[1].split())
    return set()


def run_cases(library: Path, isa: str, cases: list[str]) -> None:
    """Runs tests in a process of its own; MINICACHE_ISA is read once, with the first node."""
    if missing := set(NEEDS[isa]) - cpu_flags():
        pytest.skip(f"this processor lacks {sorted(missing)}")
    environment = {**os.environ, "MINICACHE_ISA": isa, "MINICACHE_ORT_LIBRARY": str(library)}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *cases]
    root = Path(__file__).parents[2]
    run = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert "skipped" not in run.stdout


@pytest.mark.slow
@pytest.mark.parametrize("isa", list(NEEDS))
def test_instruction_set(ort_library: Path, isa: str) -> None:
    """Exact and slerp mode."""
    run_cases(ort_library, isa, CASES)


@pytest.mark.slow
@pytest.mark.parametrize("isa", list(NEEDS))
def test_instruction_set_with_deltas(ort_library: Path, isa: str) -> None:
    """Deltas of a pair, by bits and by a basis."""
    run_cases(ort_library, isa, DELTA_CASES)


@pytest.mark.slow
@pytest.mark.parametrize("isa", list(NEEDS))
def test_instruction_set_in_subspace_mode(subspace_library: Path, isa: str) -> None:
    """Mixed codes, and heads whose sizes leave vectors partly filled."""
    run_cases(subspace_library, isa, SUBSPACE_CASES)
