"""The tables of ``bench_attention.py`` on tiny shapes: no time counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxruntime", reason="the benchmark runs ONNX Runtime")

from benchmarks import bench_attention
from benchmarks.cpu.contestants import Contestant, Maker
from benchmarks.cpu.library import Choice, Libraries
from benchmarks.cpu.report import compared
from benchmarks.cpu.step_shape import StepShape

TINY = ("--heads", "2", "--kv-heads", "1", "--rounds", "2", "--seconds", "0", "--spread", "0")


def run(folder: Path, *words: str) -> Any:
    report = folder / "report.json"
    bench_attention.main([*TINY, *words, "--json", str(report)])
    return json.loads(report.read_text())


def test_every_format_beside_every_baseline(
    ort_library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = run(tmp_path, "--tokens", "100")["main"]
    names = [row["name"] for row in rows]
    for form in ("GQA int4", "Attention fp32", "Concat fp32", "exact fp16", "subspace G=3"):
        assert any(name.startswith(form) for name in names), names
    ours = {row["name"]: row for row in rows if row["faster"]}
    assert len(ours) >= 7 and all(len(row["faster"]) == 6 for row in ours.values())
    for row in rows:
        assert 0 < row["ms"]["p25"] <= row["ms"]["median"] <= row["ms"]["p75"], row
        assert row["megabytes"] > 0 and row["gb_per_s"] > 0
    printed = capsys.readouterr().out
    table = [line for line in printed.splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(rows)
    assert len({line.count("|") for line in table}) == 1, "a cell is missing"
    assert "asked 3.5" in next(line for line in table if line.startswith("| exact fp16 "))


def test_cases_are_beside_their_plain_case(ort_library: Path, tmp_path: Path) -> None:
    formats = ("--formats", "exact fp16", "slerp 8 bit", "subspace G=2")
    rows = run(tmp_path, "--tables", "cases", "--tokens", "200", *formats)["cases"]
    found = {row["name"]: row["slower"]["median"] for row in rows}
    for form in ("exact fp16", "slerp 8 bit", "subspace G=2"):
        assert found[f"{form}, plain"] == found[f"{form}, 4 rows"] == 1.0
        assert found[f"{form}, ragged"] > 0 and found[f"{form}, ring wrap"] > 0
    assert found["slerp 8 bit, retained 5 %"] > 0


def test_rows_and_layers_of_a_group(ort_library: Path, tmp_path: Path) -> None:
    words = ("--tables", "batches", "groups", "--batches", "1", "3", "--math", "fp32")
    found = run(tmp_path, "--tokens", "100", *words)
    assert len(found["batches"]) == 2 * 5
    names = [row["name"] for row in found["groups"]]
    assert [name for name in names if "subspace" in name] == [
        f"subspace G={group} fp32" for group in (1, 2, 3, 4)
    ]


def test_ratios_by_hand(ort_library: Path, tmp_path: Path) -> None:
    shape = StepShape((64,), heads=2, kv_heads=1)
    maker = Maker(Libraries(tmp_path), 1, 0)
    form = bench_attention.formats(1)["slerp 8 bit"]
    contestants: list[Contestant] = [
        maker.baseline("GQA int8", shape),
        maker.ours(form, shape, Choice("", "fp32")),
    ]
    assert [c.layers.count for c in contestants] == [2, 4]  # two groups of two
    times = {"GQA int8": [0.2, 0.4], contestants[1].name: [0.1, 0.1]}
    base, ours = compared(contestants, times)
    assert base.ms.median == pytest.approx(150.0) and not base.faster
    assert ours.ms.median == pytest.approx(25.0)
    assert ours.faster["GQA int8"].median == pytest.approx((4 + 8) / 2)
    assert ours.asked == {"GQA int8": 3}
    assert ours.gb_per_s == pytest.approx(contestants[1].traffic.total / 0.025 / 1e9)
