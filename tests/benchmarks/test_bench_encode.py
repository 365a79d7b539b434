"""``bench_encode.py`` on tiny shapes: no time counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="the benchmark runs ONNX Runtime")

from benchmarks import bench_encode


def test_rows_per_place_of_the_encoders(
    ort_library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    words = ["--kv-heads", "1", "--rounds", "2", "--seconds", "0", "--spread", "0"]
    bench_encode.main([*words, "--json", str(report)])
    rows = json.loads(report.read_text())["rows"]
    assert [(row["name"], row["places"]) for row in rows] == [
        ("slerp 8 bit", "cache"),
        *(("subspace G=2", place) for place in ("cache", "memory")),
        *(("subspace G=3", place) for place in ("cache", "memory")),
    ]
    assert [row["asked"] for row in rows] == [None, 40.0, None, 120.0, None]
    # Keys and values: R = 144 components of 2 x 128 elements of 2 bytes each.
    assert rows[1]["table_bytes"] == 2 * 144 * 256 * 2
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(table) == 2 + 5 and len({line.count("|") for line in table}) == 1


def test_an_encoding_is_the_difference_of_two_calls() -> None:
    times = {"before": [1.0, 2.0, 1.0], "at": [1.5, 2.75, 2.0]}
    found = bench_encode.differences(times, {"one": ("before", "at")}, groups=250)["one"]
    assert found.median == pytest.approx(3000.0)  # 0.75 s by 250 groups, in us


def test_the_first_code_is_due_when_the_window_is_full() -> None:
    form = bench_encode.formats()["subspace G=2"]
    before, at = bench_encode.first_code(form, bench_encode.StepShape((1,)))
    assert (before.totals, at.totals) == ((68,), (69,))
    assert before.capacity == at.capacity == 80
