"""The comparison: every method in the catalogue, verdicts, table, figure, and the one command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.paired import DocumentRow
from benchmarks.rivals.catalogue import RIVALS, Exact
from benchmarks.rivals.figure import draw, method_of
from benchmarks.rivals.model_facts import ModelFacts
from benchmarks.rivals.table import table, verdicts
from benchmarks.rivals.verdict import judge
from tests.benchmarks.rivals.vectors import ROPES, SHAPE, cache, projections
from tests.runtime.tiny_model import write_tiny_model

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "rivals" / "compare.py"


@pytest.fixture(scope="module")
def facts() -> ModelFacts:
    sample = [np.swapaxes(values, 0, 1) for values in cache(200)[1]]
    found = ModelFacts(Path(), SHAPE, 1024, 512, lambda: sample)
    found.__dict__.update(_ropes=ROPES, _projections=projections(320))
    return found


@pytest.mark.parametrize("name", RIVALS)
def test_every_method_keeps_to_the_protocol(facts: ModelFacts, name: str) -> None:
    """Sinks and the window stay, coded tokens change, and bytes follow from bits."""
    rival = RIVALS[name]
    codec = rival.make(facts, Exact(4, 64), name)
    assert (codec.name, codec.sinks, codec.window) == (name, 4, 64)
    end = codec.coded_end(512)
    assert 4 < end <= 448 and codec.coded_end(3) == 4
    keys, values = cache(end - 4)
    before = [x.copy() for x in (*keys, *values)]
    found = codec.rewrite(keys, values, 4)
    for given, kept in zip((*keys, *values), before, strict=True):
        np.testing.assert_array_equal(given, kept, err_msg="the arguments stay as they are")
    for vectors, wanted in zip(found, (keys, values), strict=True):
        assert [x.shape for x in vectors] == [x.shape for x in wanted]
        assert {x.dtype for x in vectors} == {np.dtype(np.float32)}
        assert all(np.isfinite(x).all() for x in vectors)
    assert any(np.abs(a - b).max() > 1e-3 for a, b in zip(found[1], values, strict=True))
    coded = (end - 4) * SHAPE.elements_per_token * codec.bits_per_element / 8
    assert codec.cache_bytes(512) == pytest.approx(
        coded + SHAPE.fp16_bytes(512 - end + 4), rel=1e-4
    )
    assert codec.cache_bytes(2) == SHAPE.fp16_bytes(2)
    if rival.count:
        counted = rival.count(facts, Exact(4, 64), name)
        assert counted.bits_per_element == codec.bits_per_element
        assert counted.cache_bytes(512) == codec.cache_bytes(512)


def rows(extra: float, kl: float) -> list[DocumentRow]:
    documents = [
        ("prose", "a", 0.01),
        ("prose", "b", -0.01),
        ("code", "c", 0.0),
        ("code", "d", 0.02),
    ]
    return [
        DocumentRow(k, d, 100, 100 * (2 + extra + x), 200.0, 100 * kl, 90) for k, d, x in documents
    ]


def test_verdicts_compare_with_the_best_export_of_no_more_room() -> None:
    measured = {
        "ours-b4": rows(0.001, 0.001),
        "ours-b2": rows(0.02, 0.02),
        "near": rows(0.02, 0.02),
        "good": rows(0.005, 0.005),
        "bad": rows(0.5, 0.5),
        "tiny": rows(0.1, 0.1),
    }
    bits = {"ours-b4": 4.0, "ours-b2": 2.0, "near": 2.0, "good": 2.5, "bad": 4.0, "tiny": 1.0}
    found = {one.rival: one for one in judge(measured, bits, ["ours-b4", "ours-b2"])}
    assert {name: one.outcome for name, one in found.items()} == {
        "near": "open", "good": "worse", "bad": "better", "tiny": "no such export",
    }  # fmt: skip
    assert found["bad"].ours == "ours-b4" and found["good"].ours == "ours-b2"
    assert found["good"].kl == pytest.approx(4)
    said = verdicts(list(found.values())).splitlines()
    assert said[0].startswith("good: ours LOSES") and "no export of ours" in said[-1]


def test_kl_decides_where_perplexity_does_not() -> None:
    """An error that happens to lower perplexity is an error."""
    measured = {"ours": rows(-0.001, 0.01), "rival": rows(0.001, 0.001)}
    (found,) = judge(measured, {"ours": 2.0, "rival": 2.0}, ["ours"])
    assert found.perplexity is not None and found.perplexity.value < 1
    assert found.outcome == "worse"
    assert "ours has 10.000 of its KL" in verdicts([found])


def result() -> dict[str, Any]:
    row = {"kv_bytes": 1000, "compression_ratio": 2.0, "top1": 0.9}
    interval = {"value": 1.01, "low": 1.0, "high": 1.02}
    names = {"xkv-4x": 4.0, "xkv-8x": 2.0, "mine-3": 3.0, "mine-2": 2.0}
    return {
        "configurations": {
            name: {**row, "bits_per_element": bits, "ratio": interval, "kl": 0.02}
            for name, bits in names.items()
        }
    }


def test_table_and_figure(tmp_path: Path) -> None:
    lines = table(result()).splitlines()
    assert lines[2].startswith(
        "| xkv-4x | 4.00 | 4.0 × | 1,000 | 2.00 × | 1.0100 (1.0000 to 1.0200)"
    )
    for name in ("one.svg", "two.svg"):
        draw(result(), {"mine-3": "subspace", "mine-2": "subspace"}, tmp_path / name)
    drawn = (tmp_path / "one.svg").read_text()
    assert drawn == (tmp_path / "two.svg").read_text(), "the same bytes for the same numbers"
    assert drawn.count(">xkv<") == 1 and drawn.count(">mine (ours)<") == 1


def test_settings_of_a_method_are_one_line() -> None:
    for method, names in {
        "kivi": ["kivi-int2", "kivi-int4"],
        "xquant-cl-protected": ["xquant-cl-int3-protected"],
        "xkv": ["xkv-4x", "xkv-5.3x"],
        "vfold-2": ["vfold-2", "vfold-2-int4"],
    }.items():
        assert {method_of(name) for name in names} == {method}


@pytest.mark.slow
def test_one_command_measures_and_judges_what_the_model_allows(
    tmp_path: Path, ort_library: Path
) -> None:
    """The tiny model's heads are too small for groups of 32, and its positions are no RoPE."""
    write_tiny_model(tmp_path / "exact", "exact")
    write_tiny_model(tmp_path / "paper", "slerp")
    random = np.random.default_rng(3)
    letters = np.array(list("abcdefgh \n"))
    documents = ["".join(letters[random.integers(0, 10, 700)]) for _ in range(6)]
    (tmp_path / "text.txt").write_text("\f".join(documents))
    command = [
        sys.executable, str(SCRIPT), "exact", "paper=paper", "--text", "one=text.txt",
        "--documents", "2", "--context", "150", "--chunk", "8", "--json", "out.json",
        "--svg", "out.svg", "--calibration-documents", "1", "--threads", "1",
    ]  # fmt: skip
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert found.returncode == 0, found.stderr
    measured = json.loads((tmp_path / "out.json").read_text())
    allowed = ["static-int8", "static-int4", "vfold-2", "vfold-4", "value-mean-2"]
    assert list(measured["configurations"]) == ["paper", *allowed]
    for size in ("bits_per_element", "kv_bytes"):
        judged = [one["rival"] for one in measured[f"verdicts_by_{size}"]]
        assert judged == ["paper", *allowed]
    assert measured["configurations"]["value-mean-2"]["kl"] > 0
    assert "left out kivi-int2: KIVI codes values in groups of 32" in found.stdout
    assert "left out xkv-4x: keys of layers [0, 1] depend on the position" in found.stdout
    assert "| value-mean-2 | 12.00 | 1.3 × |" in found.stdout
    assert "no export of ours" in found.stdout and (tmp_path / "out.svg").exists()

    refused = subprocess.run(
        [*command, "--method", "xkv-4x", "--resume"],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert refused.returncode == 1 and refused.stderr.startswith("xkv-4x: keys of layers [0, 1]")
