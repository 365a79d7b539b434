"""The whole export on small real graphs: exact equals the original, paper merges what it says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from minicache.exporter import ExportOptions, export_model
from minicache.exporter.schemas import DOMAIN
from minicache.exporter.sizes import cache_size
from minicache.runtime import Session

FIXTURES = Path(__file__).parent.parent / "fixtures"
F1, F4 = FIXTURES / "onnx-llama3-gqa-optimum-fp32", FIXTURES / "genai-llama2-mha-cpu-fp32"


def export(model: Path, folder: Path, **options: object) -> dict[str, object]:
    settings = {"mode": "exact", "quiet": True, "verify_documents": 0, **options}
    settings.setdefault("max_sequence_length", 96)
    return export_model(model, folder, ExportOptions(**settings)).report  # type: ignore[arg-type]


@pytest.mark.parametrize("model", [F1, F4], ids=["F1", "F4"])
def test_exact_mode_proves_parity(model: Path, tmp_path: Path) -> None:
    report = export(model, tmp_path / "out")
    parity = report["parity"]
    assert isinstance(parity, dict)
    assert parity["max_relative_difference"] <= parity["tolerance"]
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == report


@pytest.mark.parametrize("model", [F1, F4], ids=["F1", "F4"])
@pytest.mark.parametrize(
    "options",
    [
        {"retention": "none"},
        {"retention": "budget:0.1", "code_bits": 8, "rewind_slack": 16},  # + X slots
        {"retention": "minmax:0.05", "code_bits": 4, "magnitude": "blended"},
        {"retention": "threshold:0.5", "group_size": 3, "start_layer": 0},
    ],
    ids=["none", "budget-8", "minmax-4", "threshold-G3"],
)
def test_paper_mode_runs_and_saves_memory(
    model: Path, options: dict[str, object], tmp_path: Path
) -> None:
    # Large enough for the side buffer's rewind slack (64 tokens) to be the smaller part.
    capacity = 512
    settings = {"mode": "paper", "window": 8, "sinks": 2, **options}
    report = export(model, tmp_path / "out", max_sequence_length=capacity, **settings)
    graph = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False).graph
    merged = [node for node in graph.node if node.domain == DOMAIN and len(node.output) > 3]
    groups = report["merged_groups"]
    assert isinstance(groups, list)
    assert len(merged) == len(groups) > 0
    with Session(tmp_path / "out") as session:
        exact = 2 * session.manifest.num_layers * session.manifest.num_kv_heads
        exact *= session.manifest.head_dim * capacity * 4
        assert session.cache_bytes == cache_size(session.manifest, capacity).resident
        assert session.cache_bytes < exact
        ids = np.arange(60, dtype=np.int64)[None] % session.manifest.vocab_size
        logits = session.forward(ids)
        assert np.isfinite(logits).all()
        # 60 tokens, 2 sinks and 8 recent ones exact: 50 are coded.
        for stats in session.retention_stats():
            assert stats.n_retained + stats.n_merged == 50


def test_tokens_within_the_window_are_exact(tmp_path: Path) -> None:
    """As long as nothing is coded, paper mode differs from exact mode by its fp16 ring only."""
    export(F1, tmp_path / "exact")
    export(F1, tmp_path / "paper", mode="paper", window=64, sinks=4)
    ids = np.arange(60, dtype=np.int64)[None]
    with Session(tmp_path / "exact") as exact, Session(tmp_path / "paper") as paper:
        for start in range(0, 60, 20):
            expected = exact.forward(ids[:, start : start + 20])
            got = paper.forward(ids[:, start : start + 20])
            assert np.abs(got - expected).max() <= 2e-3 * np.abs(expected).max()


def test_the_command_reports_what_it_wrote(tmp_path: Path) -> None:
    export(F1, tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    expected = {"model.onnx", "minicache.json", "report.json", "report.html", "config.json"}
    assert expected <= names
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
