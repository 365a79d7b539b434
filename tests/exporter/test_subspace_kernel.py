"""The exported graph, run by its kernel, computes what the planner simulated."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from minicache.exporter import stored_calibration
from minicache.exporter.baselines.cache_shape import CacheShape
from minicache.exporter.baselines.exact_cache import ExactCache
from minicache.exporter.baselines.simulated_cache import SimulatedCache
from minicache.exporter.baselines.subspace_simulation import SubspaceSimulation
from minicache.exporter.calibration.calibration import Calibration
from minicache.exporter.plan_file import read_plan
from minicache.exporter.planner.candidate import make_codecs
from minicache.runtime import Session
from tests.exporter.subspace_workplace import CAPACITY, Workplace
from tests.tolerances import SIMULATED_LOGITS, SIMULATED_LOGITS_WORST

PREFILL, STEPS, SEGMENT = 150, 40, 64
PAIRS = [[0, 1], [2, 3]]


def relative(found: list[np.ndarray], expected: list[np.ndarray]) -> np.ndarray:
    """Largest difference of each step, over the largest logit of all."""
    difference = np.abs(np.concatenate(found) - np.concatenate(expected)).max(axis=-1)
    return np.asarray(difference / np.abs(np.concatenate(expected)).max())


@pytest.mark.slow
@pytest.mark.usefixtures("ort_library")
@pytest.mark.parametrize(
    ("name", "code_heads", "coded"),
    [
        ("onnx-llama3-gqa-optimum-fp32", 2, PAIRS),
        ("genai-qwen3-cpu-fp32", 1, PAIRS),
        ("onnx-llama3-gqa-optimum-fp16", 2, PAIRS),
        ("onnx-gemma2-optimum-fp32", 1, [[1, 3]]),
        ("onnx-gemma3-optimum-fp32", 1, [[5]]),
    ],
)
def test_logits_are_those_of_the_simulation(
    name: str,
    code_heads: int,
    coded: list[list[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over a prefill and decode steps, with keys of several segments in the cache.

    The other layers of the Gemmas attend to a sliding window of 32 tokens; the prefill and the
    steps go over their rings several times.
    """
    monkeypatch.setattr(stored_calibration, "SEGMENT_LENGTH", SEGMENT)
    place = Workplace.make(tmp_path, name)
    bits = {"code_heads": code_heads, "key_bits_per_element": 5, "value_bits_per_element": 4}
    groups: list[dict[str, object]] = [{"layers": layers, **bits} for layers in coded]
    known = [layer for layers in coded for layer in layers]
    groups += [{"layers": [layer]} for layer in range(max(known)) if layer not in known]
    (tmp_path / "plan.json").write_text(json.dumps({"groups": groups, "window": 16}))
    place.export("coded", plan=tmp_path / "plan.json")
    place.export("exact", mode="exact")
    (cached,) = place.cache.glob("*.npz")
    plan = read_plan(tmp_path / "coded" / "plan.json", CAPACITY)
    codecs = tuple(make_codecs(plan.groups, Calibration.load(cached)))
    assert {codec.segment_length for codec in codecs} == {SEGMENT}
    ids = np.frombuffer(place.text.read_bytes()[: PREFILL + STEPS], np.uint8).astype(np.int64)
    tokens = [ids[None, at : at + 1] for at in range(PREFILL, PREFILL + STEPS)]
    with Session(tmp_path / "coded") as session, Session(tmp_path / "exact") as exact:
        shape = CacheShape.of(exact.manifest)
        codec = SubspaceSimulation(codecs, shape, sinks=plan.sinks, window=plan.window)
        simulated = SimulatedCache(ExactCache(exact), codec)
        first = simulated.prefill(ids[:PREFILL])
        np.testing.assert_array_equal(session.prefill(ids[:PREFILL], chunk=PREFILL), first)
        expected = [simulated.forward(token)[0] for token in tokens]
        found = [session.forward(token)[0] for token in tokens]
        exact.reset()
        exact.prefill(ids[:PREFILL], chunk=PREFILL)
        plain = [exact.forward(token)[0] for token in tokens]
    errors = relative(found, expected)
    assert np.quantile(errors, 0.75) <= SIMULATED_LOGITS, errors
    assert errors.max() <= SIMULATED_LOGITS_WORST, errors
    # The codes matter: an export that ignored them would be off by far more.
    assert np.median(relative(plain, expected)) > 5 * np.median(errors)
