"""``bench_prefill.py`` on tiny shapes: no time counts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="the benchmark runs ONNX Runtime")

from benchmarks import bench_prefill
from benchmarks.cpu.fma_peak import fma_peak
from tests.plugins.test_ort_isa import cpu_flags


def test_exact_beside_gqa_and_codes_beside_exact(
    ort_library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    words = ["--heads", "2", "--kv-heads", "1", "--tokens", "80", "96", "--rounds", "2"]
    words += ["--math", "fp32"]
    bench_prefill.main([*words, "--json", str(report)])
    written = json.loads(report.read_text())
    rows, peak = written["rows"], written["fma_peak"]
    assert [row["tokens"] for row in rows] == [80] * 5 + [96] * 5
    beside = {row["name"]: (row["beside"], row["asked"]) for row in rows}
    assert beside["GQA fp32"] == ("", None)
    assert beside["exact fp32"] == ("GQA fp32", 1.1)
    assert beside["subspace G=3 fp32"] == ("exact fp32", 1.2)
    assert all(row["slower"]["median"] > 0 for row in rows if row["beside"])
    if peak:  # a C compiler is at hand, and an instruction set with FMA
        assert all(row["share"] == pytest.approx(row["gflop_per_s"] * 1e9 / peak) for row in rows)
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(rows) and len({line.count("|") for line in table}) == 1


def test_the_peak_is_of_the_instruction_set(tmp_path: Path) -> None:
    """A loop of FMA instructions runs at some GFLOP/s; SSE2 has none, so nothing is claimed."""
    assert fma_peak("baseline", tmp_path) is None
    if "fma" in cpu_flags() and shutil.which("cc"):
        peak = fma_peak("avx2", tmp_path, seconds=0.01)
        assert peak and 1e9 < peak < 1e12
