"""The ``subspace`` mode on models with layers of sliding-window attention, from graph to folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from minicache.exporter.baselines.prefill_snapshot import PrefillSnapshot
from minicache.exporter.calibration.calibration import Calibration
from minicache.exporter.pipeline import ExportResult
from minicache.exporter.planner.loss_meter import LossMeter
from minicache.exporter.sizes import cache_size
from minicache.runtime import Session
from minicache.runtime.accounting import kv_elements, ring_states, state_bytes
from minicache.runtime.errors import PlanError, SessionError
from tests.exporter.subspace_workplace import CAPACITY, SINKS, SLACK, WINDOW, Workplace

pytestmark = pytest.mark.usefixtures("ort_library")

LOCAL = 32  # window of both fixtures
CODED = {"onnx-gemma2-optimum-fp32": [1, 3], "onnx-gemma3-optimum-fp32": [5]}
LAYERS = {"onnx-gemma2-optimum-fp32": 4, "onnx-gemma3-optimum-fp32": 6}


@pytest.fixture(scope="module", params=CODED)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def place(name: str, tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return Workplace.make(tmp_path_factory.mktemp("sliding"), name)


@pytest.fixture(scope="module")
def exported(place: Workplace, ort_library: Path) -> ExportResult:
    return place.export("out", ratio=4.0, verify_documents=2)


def test_only_full_layers_are_coded_and_counted(exported: ExportResult, name: str) -> None:
    """The ratio bounds their codes; the resident bytes are those of all buffers."""
    manifest, report = exported.manifest, exported.report
    assert report["merged_groups"] == [CODED[name]]
    exact = [list(group["layers"]) for group in manifest.plan["groups"] if group["mode"] == "exact"]
    assert exact == [[layer] for layer in range(LAYERS[name]) if layer not in CODED[name]]
    plain = 2 * 2 * manifest.num_kv_heads * manifest.head_dim  # fp16 bytes of a token and layer
    codes = sum(group["bytes_per_token"] for group in report["groups"])
    assert codes <= len(CODED[name]) * plain / 4
    assert all(point["ratio"] >= 3 for point in report["frontier"])
    rings = len(exact) * (LOCAL + SLACK) * 2 * plain  # in fp32
    assert state_bytes(ring_states(manifest)) == rings
    recent = len(CODED[name]) * (SINKS + WINDOW + SLACK) * plain
    with Session(exported.folder) as session:
        assert session.cache_bytes == codes * CAPACITY + recent + rings
        assert session.cache_bytes == cache_size(manifest, CAPACITY).resident
    # A plain cache is not said to keep what no layer reads.
    kept = len(CODED[name]) * CAPACITY + len(exact) * LOCAL
    assert 2 * kv_elements(manifest, CAPACITY) == kept * plain
    assert 2 * kv_elements(manifest, 20) == LAYERS[name] * 20 * plain
    assert any(f"{len(exact)} of {LAYERS[name]} layers attend" in x for x in report["notes"])


def test_everybody_pays_for_the_rings(exported: ExportResult) -> None:
    """Rivals code the same layers, and keep the same rings."""
    rings = state_bytes(ring_states(exported.manifest))
    rivals = {rival["name"]: rival for rival in exported.report["rivals"]}
    assert {"static-int8", "static-int4", "kivi-int4", "kivi-int2"} == set(rivals)
    assert all(rival["kv_bytes"] > rings for rival in rivals.values())
    assert 0 <= rivals["static-int8"]["kl_mean"] < rivals["static-int4"]["kl_mean"]


def test_codes_turn_keys_by_the_full_layers_own_frequencies(
    exported: ExportResult, place: Workplace, name: str
) -> None:
    """Gemma 3 turns its sliding-window layers by others."""
    (cached,) = place.cache.glob("*.npz")
    calibration = Calibration.load(cached)
    assert [layer.layer for layer in calibration.layers] == CODED[name]
    config = json.loads((place.model / "config.json").read_text(encoding="utf-8"))
    pairs = np.arange(calibration.layers[0].head_dim // 2) / (calibration.layers[0].head_dim // 2)
    for layer in calibration.layers:
        np.testing.assert_allclose(
            layer.rope.frequencies, config["rope_theta"] ** -pairs, rtol=1e-3, atol=1e-6
        )


def test_the_export_loses_what_the_search_measured(
    exported: ExportResult, place: Workplace, ort_library: Path
) -> None:
    """Its kernels, on other documents, against the simulation's KL."""
    (chosen,) = [point for point in exported.report["frontier"] if point["chosen"]]
    assert exported.evaluation is not None
    assert chosen["kl"] / 3 < exported.evaluation.kl_mean < chosen["kl"] * 3


def test_an_uncoded_simulation_is_the_exact_model(place: Workplace, ort_library: Path) -> None:
    """With the kernels: prefill and chunks are longer than the window, the ring and the slack."""
    exact = place.export("exact", mode="exact", rewind_slack=SLACK)
    ids = np.frombuffer(place.text.read_bytes()[:220], np.uint8).astype(np.int64)
    prefill, chunk = 100, 32
    assert prefill > LOCAL + SLACK and chunk > SLACK
    meter = LossMeter(exact.folder, [ids.tolist()], prefill=prefill, scored=len(ids) - prefill - 1)
    snapshot = PrefillSnapshot.take(meter._cache, ids[:prefill])
    runs = [np.concatenate(list(meter._run(None, snapshot, ids))) for _ in range(3)]
    with Session(exact.folder) as session:
        session.prefill(ids[:prefill], chunk=prefill)
        starts = range(prefill, len(ids) - 1, chunk)
        ends = [min(start + chunk, len(ids) - 1) for start in starts]
        expected = np.concatenate(
            [session.forward(ids[None, s:e])[0] for s, e in zip(starts, ends, strict=True)]
        )
        with pytest.raises(SessionError, match="cannot take back"):
            session.rewind(SLACK + 1)
    for found in runs:
        np.testing.assert_array_equal(found, expected)


def test_the_session_takes_back_what_its_rings_hold(exported: ExportResult) -> None:
    """Rings of windows and of codes have the same slack."""
    ids = np.arange(150, dtype=np.int64)[None]
    steps = [ids[:, at : at + 1] for at in range(2 * SLACK)]
    with Session(exported.folder) as session:
        session.prefill(ids, chunk=50)
        expected = [session.forward(step) for step in steps][SLACK:]
        session.rewind(SLACK)
        found = [session.forward(step) for step in steps[SLACK:]]
        np.testing.assert_array_equal(np.array(found), np.array(expected))
        with pytest.raises(SessionError, match="cannot take back"):
            session.rewind(SLACK + 1)


def test_a_plan_must_not_code_sliding_windows(
    place: Workplace, name: str, ort_library: Path
) -> None:
    coded = {"code_heads": 1, "key_bits_per_element": 4, "value_bits_per_element": 4}
    groups = [{"layers": [0], **coded}] + [{"layers": [n]} for n in range(1, LAYERS[name])]
    (place.root / "wrong.json").write_text(json.dumps({"groups": groups}), encoding="utf-8")
    with pytest.raises(PlanError, match="codes layers 0, which attend to a sliding window"):
        place.export("wrong", plan=place.root / "wrong.json")
