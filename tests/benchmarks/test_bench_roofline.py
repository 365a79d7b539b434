"""``bench_roofline.py`` on tiny shapes: no time counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="the benchmark runs ONNX Runtime")

from benchmarks import bench_roofline


def test_shares_lines_and_memory(
    ort_library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    words = ["--kv-heads", "1", "--tokens", "80", "160", "--formats", "exact fp16", "subspace G=2"]
    words += ["--rounds", "2", "--seconds", "0", "--spread", "0", "--buffer", "1"]
    words += ["--memory-tokens", "200", "--memory-steps", "20", "--math", "fp32"]
    bench_roofline.main([*words, "--json", str(report)])
    found = json.loads(report.read_text())
    assert found["read_gb_per_s"]["median"] > 0
    names = ["GQA fp32", "GQA int8", "exact fp16", "subspace G=2 fp32"]
    assert [row["name"] for row in found["shares"]] == names * 2
    assert all(row["share"]["median"] > 0 for row in found["shares"])
    assert [row["asked"] for row in found["shares"][:4]] == [None, None, 0.5, None]
    assert [line["name"] for line in found["lines"]] == names
    assert list(found["rss_growth_bytes"]) == ["exact fp16", "subspace G=2"]
    assert max(found["rss_growth_bytes"].values()) < 1 << 20
    assert "one thread reads" in capsys.readouterr().out


def test_a_line_is_found_again() -> None:
    tokens = [1000, 2000, 8000]
    exact = bench_roofline.fit("x", tokens, [1e-5 + 2e-9 * t for t in tokens])
    assert (exact.fixed_us, exact.ns_per_token) == pytest.approx((10.0, 2.0))
    assert exact.worst == pytest.approx(0.0, abs=1e-9)
    bent = bench_roofline.fit("x", tokens, [1e-9 * t**1.2 for t in tokens])
    assert bent.worst > 0.02
