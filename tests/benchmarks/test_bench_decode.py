"""``bench_decode.py`` on small models: no time counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="the benchmark runs ONNX Runtime")

from benchmarks import bench_decode
from benchmarks.cpu.shared_buffers import SharedBuffers, channel_scales
from minicache.exporter.options import ExportOptions
from minicache.exporter.original import OriginalModel
from minicache.exporter.pipeline import export_model

FIXTURES = Path(__file__).parents[1] / "fixtures"
GROUP_QUERY = FIXTURES / "genai-qwen2-cpu-fp32"
DECOMPOSED = FIXTURES / "onnx-llama3-gqa-optimum-fp32"


def run(original: Path, folder: Path) -> Any:
    export_model(original, folder / "exact", ExportOptions(mode="exact", quiet=True))
    report = folder / "report.json"
    words = [str(original), str(folder / "exact"), "--tokens", "20", "--rounds", "2"]
    words += ["--steps", "3", "--threads", "1", "--json", str(report)]
    bench_decode.main(words)
    return json.loads(report.read_text())["rows"]


def test_a_group_query_graph_is_driven_three_ways(
    ort_library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = run(GROUP_QUERY, tmp_path)
    names = [
        "original, IOBinding", "original, shared buffers", "original, int8 cache", "exact",
    ]  # fmt: skip
    assert [row["name"] for row in rows] == names
    for row in rows:
        assert list(row["cpu_ratio"]) == [name for name in names[:3] if name != row["name"]]
        assert row["tokens_per_s"] == pytest.approx(1e3 / row["cpu_ms"]["median"])
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(table) == 2 + 4 and len({line.count("|") for line in table}) == 1


def test_a_decomposed_graph_has_one_way(ort_library: Path, tmp_path: Path) -> None:
    names = [row["name"] for row in run(DECOMPOSED, tmp_path)]
    assert names == ["original, IOBinding", "exact"]


def test_shared_buffers_read_what_the_original_reads() -> None:
    ids = np.random.default_rng(0).integers(5, 200, (1, 24))
    wanted = OriginalModel(GROUP_QUERY, threads=1).forward(ids)
    shared = SharedBuffers(GROUP_QUERY, 32, 1)
    parts = [shared.forward(ids[:, a:b]) for a, b in ((0, 16), (16, 23), (23, 24))]
    scale = np.abs(wanted).max()
    assert np.abs(np.concatenate(parts, 1) - wanted).max() < 1e-4 * scale
    scales = channel_scales(shared.buffers, 24)
    coded = SharedBuffers(GROUP_QUERY, 32, 1, scales)
    coded.forward(ids[:, :16])
    found = coded.forward(ids[:, 16:])
    error = np.abs(found - wanted[:, 16:]).max()
    assert 0 < error < 0.1 * scale, "int8 is near, and not the same"
    assert next(iter(coded.buffers.values())).dtype == np.int8


def test_ratios_and_targets_by_hand() -> None:
    times = {
        "a": bench_decode.Timed([2.0, 2.0], [1.0, 3.0], [np.zeros(4)] * 2),
        "b": bench_decode.Timed([1.0, 1.0], [0.5, 1.0], [np.zeros(4)] * 2),
    }
    rows = bench_decode.rows_of(times, ["a"], np.array([[1, 2]]))
    assert rows[0].cpu_ratio == {} and rows[0].agreement is None
    assert rows[1].cpu_ratio["a"].median == pytest.approx(2.5)
    assert rows[1].tokens_per_s == pytest.approx(1 / 0.75)
    assert rows[1].agreement is not None and rows[1].agreement.top1 == 1.0
