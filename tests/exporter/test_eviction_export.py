"""``--evict``: from the option to a folder whose rows are longer than their cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from minicache.exporter import ExportOptions
from minicache.exporter.pipeline import ExportResult
from minicache.exporter.sizes import cache_size
from minicache.runtime import Session
from minicache.runtime.accounting import ring_states
from minicache.runtime.errors import PlanError
from minicache.runtime.eviction.evictor import least_slots
from minicache.runtime.eviction.parse import parse_policy
from minicache.runtime.eviction.size import steady_slots
from tests.exporter.subspace_workplace import CAPACITY, SLACK, Workplace

pytestmark = pytest.mark.usefixtures("ort_library")

MODES: dict[str, dict[str, Any]] = {
    "exact": {"mode": "exact", "rewind_slack": SLACK},
    "paper": {"mode": "paper", "retention": "none"},
    "subspace": {"mode": "subspace", "ratio": 4.0},
}
POLICIES = {"streaming": "streaming:4+72", "snapkv": "snapkv:80", "h2o": "h2o:76"}
CASES = [("exact", "h2o"), ("paper", "streaming"), ("subspace", "snapkv"), ("subspace", "h2o")]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return Workplace.make(tmp_path_factory.mktemp("evict"), "onnx-llama3-gqa-optimum-fp32")


@pytest.fixture(scope="module")
def exports(place: Workplace, ort_library: Path) -> dict[tuple[str, str], ExportResult]:
    return {
        (mode, policy): place.export(f"{mode}-{policy}", evict=POLICIES[policy], **MODES[mode])
        for mode, policy in CASES
    }


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_every_full_layer_evicts(
    exports: dict[tuple[str, str], ExportResult], case: tuple[str, str]
) -> None:
    """Attributes of the nodes, states, and what the manifest says of them."""
    result, observes = exports[case], parse_policy(POLICIES[case[1]]).observes
    graph = onnx.load(result.folder / "model.onnx", load_external_data=False).graph
    nodes = [node for node in graph.node if node.op_type == "MiniCacheAttention"]
    given = [{a.name: onnx.helper.get_attribute_value(a) for a in node.attribute} for node in nodes]
    assert all(attributes["evicts"] == 1 for attributes in given)
    assert all(attributes["observes"] == observes for attributes in given)
    states = {state.name for state in result.manifest.state if state.group == 0}
    assert "evicted" in states and ("attention_mass" in states) == (observes != 0)
    groups = {str(state.group) for state in result.manifest.state}
    assert set(result.manifest.eviction["segment_lengths"]) == groups
    assert result.manifest.eviction["policy"] == POLICIES[case[1]]
    assert result.manifest.plan["evict"] == POLICIES[case[1]]
    assert result.report["options"]["evict"] == POLICIES[case[1]]


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_rows_go_on_behind_their_cache(
    exports: dict[tuple[str, str], ExportResult], place: Workplace, case: tuple[str, str]
) -> None:
    """Until something is evicted all is as without; then the row is bounded, its text is not."""
    folder, policy = exports[case].folder, parse_policy(POLICIES[case[1]])
    plain = place.export(f"plain-{case[0]}", overwrite=True, **MODES[case[0]])
    slots = least_slots(policy, 40)
    ids = np.random.default_rng(3).integers(1, 200, (1, CAPACITY))
    with Session(folder, cache_tokens=slots) as session, Session(plain.folder) as whole:
        assert session.cache_tensors()["past_minicache.0.evicted"].max() == 0
        for part in (ids[:, :35], ids[:, 35:70]):
            first = session.forward(part), whole.forward(part)
        np.testing.assert_allclose(*first, rtol=0, atol=2e-3 * np.abs(first[1]).max())
        for start in range(70, CAPACITY, 31):
            logits = session.forward(ids[:, start : start + 31])
            assert np.isfinite(logits).all()
        assert session.lengths.tolist() == [CAPACITY]
        evicted = session.cache_tensors()["past_minicache.0.evicted"][0, -1]
        assert CAPACITY - slots <= evicted and evicted % 16 == 0


def test_sizes_are_those_of_sessions(exports: dict[tuple[str, str], ExportResult]) -> None:
    """A policy that runs bounds the cache whatever the context."""
    manifest = exports["exact", "h2o"].manifest
    with Session(exports["exact", "h2o"].folder) as session:
        assert session.cache_bytes == cache_size(manifest, CAPACITY).resident
    assert cache_size(manifest, 100_000).resident == cache_size(manifest, 50_000).resident
    assert cache_size(manifest, 100_000).ratio_to_fp16 > 50
    snapkv = exports["subspace", "snapkv"].manifest
    assert cache_size(snapkv, 100_000).resident == cache_size(snapkv, 50_000).resident
    # What is generated after the one choice stays.
    grown = steady_slots(snapkv, 100_000, 512) - steady_slots(snapkv, 100_000, 256)
    assert grown == 256 and steady_slots(manifest, 50_000, 512) == steady_slots(manifest, 50_000)


def test_layers_that_evict_are_not_sliding_ones(
    exports: dict[tuple[str, str], ExportResult],
) -> None:
    """Their state has a table without capacity, but no ring; the report's notes speak of none."""
    for result in exports.values():
        assert ring_states(result.manifest) == []
        assert not [note for note in result.report["notes"] if "sliding window" in note]


def test_a_plan_brings_its_policy_with_it(
    exports: dict[tuple[str, str], ExportResult], place: Workplace
) -> None:
    """``plan.json`` of an export that evicts gives another one; ``--evict`` comes before it."""
    plan = exports["subspace", "h2o"].folder / "plan.json"
    again = place.export("again", plan=plan)
    assert again.manifest.eviction["policy"] == "h2o:76"
    other = place.export("other", plan=plan, evict="streaming:4+90")
    assert other.manifest.eviction["policy"] == "streaming:4+90"


def test_layers_of_sliding_windows_keep_their_rings(tmp_path: Path, ort_library: Path) -> None:
    """In Gemma 2 every other layer; where all do, there is nothing to evict."""
    place = Workplace.make(tmp_path / "gemma", "onnx-gemma2-optimum-fp32")
    result = place.export("out", evict="h2o:100", **MODES["exact"])
    assert set(result.manifest.eviction["segment_lengths"]) == {"1", "3"}
    with Session(result.folder, cache_tokens=200) as session:
        ids = np.random.default_rng(3).integers(1, 200, (1, CAPACITY))
        assert np.isfinite(session.prefill(ids, chunk=40)).all()
    mistral = Workplace.make(tmp_path / "mistral", "onnx-mistral-sw-optimum-fp32")
    with pytest.raises(PlanError, match="which evicts already"):
        mistral.export("out", evict="h2o:100", **MODES["exact"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"evict": "h2o"}, "--evict 'h2o' is none of streaming:SINKS"),
        ({"evict": "h2o:60", "mode": "subspace"}, "keeps 60 tokens; give at least 68"),
        ({"evict": "h2o:40", "mode": "paper"}, "keeps 40 tokens; give at least 68"),
        (
            {"evict": "h2o:40", "mode": "exact", "rewind_slack": 16},
            "keeps 40 tokens; give at least 48",
        ),
    ],
)
def test_what_cannot_be_is_told_first(
    place: Workplace, options: dict[str, Any], words: str
) -> None:
    """One sentence, before any long work."""
    with pytest.raises(PlanError, match=words):
        place.export("refused", **{"mode": "exact", **options})
    assert not (place.root / "refused").exists()


def test_the_option_is_documented() -> None:
    assert "evict" in (ExportOptions.__doc__ or "")
