"""The frontier joins two runs by name and picks by ratio, loss and needles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.frontier import best, main, points


def quality_row(size: int, ratio: float, perplexity: float, low: float | None) -> dict[str, Any]:
    """A configuration as ``bench_quality.py`` writes it."""
    high = None if low is None else 2 * perplexity - low
    return {
        "kv_bytes": size,
        "compression_ratio": ratio,
        "ratio": {"value": perplexity, "low": low, "high": high},
        "kl": 0.01,
        "top1": 0.9,
    }


QUALITY: dict[str, Any] = {
    "context": 4096,
    "prefill": 3584,
    "configurations": {
        "evicting": quality_row(2_500_000, 40.0, 1.2, 1.1),
        "coded": quality_row(9_000_000, 10.5, 1.02, 1.01),
        "lossy": quality_row(6_000_000, 16.0, 1.01, None),
    },
}
NEEDLES = {
    "configurations": {
        "original": {"exact": {"1024": 9, "4096": 8}, "cases": {"1024": 9, "4096": 8}},
        "coded": {"exact": {"1024": 9, "4096": 7}, "cases": {"1024": 9, "4096": 8}},
        "lossy": {"exact": {"1024": 0, "4096": 0}, "cases": {"1024": 9, "4096": 8}},
        "evicting": {"exact": {"1024": 9, "4096": 6}, "cases": {"1024": 9, "4096": 8}},
    }
}


def test_points_are_of_both_runs_by_ratio() -> None:
    """Needles of all contexts count together."""
    found = points(QUALITY, NEEDLES)
    assert [(p.name, p.found, p.asked) for p in found] == [
        ("coded", 16, 17),
        ("lossy", 0, 17),
        ("evicting", 15, 17),
    ]
    assert found[0].interval == (1.01, pytest.approx(1.03)) and found[1].interval is None
    assert "9.00 | 10.5 × | 1.0200 (1.0100 to 1.0300)" in found[0].line()


def test_best_has_the_ratio_and_the_needles() -> None:
    """A smaller perplexity does not make up for lost needles, nor for a lacking ratio."""
    found = points(QUALITY, NEEDLES)
    chosen = [best(found, ratio, lost) for ratio, lost in ((9, None), (9, 2), (16, 2))]
    assert [point and point.name for point in chosen] == ["lossy", "coded", "evicting"]
    assert best(found, 16, 1) is None and best(found, 41, None) is None


def test_files_are_joined_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Needles that were not measured are a dash; those of something unknown are an error."""

    def run(*without: str) -> str:
        kept = {k: v for k, v in NEEDLES["configurations"].items() if k not in without}
        (tmp_path / "needle.json").write_text(json.dumps({"configurations": kept}))
        main([str(tmp_path / "quality.json"), str(tmp_path / "needle.json"), "--at", "9"])
        return capsys.readouterr().out

    (tmp_path / "quality.json").write_text(json.dumps(QUALITY))
    shown = run()
    assert "9 x or more: lowest perplexity lossy (x 1.0100)" in shown
    assert "2 needles or fewer coded (x 1.0200)" in shown
    shown = run("lossy", "coded")
    assert "| lossy | 6.00 | 16.0 × | 1.0100 | 0.0100 | 90.0% | - |" in shown
    assert "lowest perplexity lossy" in shown and "or fewer evicting (x 1.2000)" in shown
    fewer = {k: v for k, v in QUALITY["configurations"].items() if k != "coded"}
    (tmp_path / "quality.json").write_text(json.dumps({**QUALITY, "configurations": fewer}))
    with pytest.raises(SystemExit, match="coded: asked for needles"):
        run()
