"""Graphs that were lowered for TensorRT, driven by a session: they compute what the export does.

TensorRT is faked: ONNX's reference evaluator runs the lowered graph, and the NumPy reference its
attention, on the memory that the session binds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.trt_check import compare
from minicache.runtime.engine_profile import engine_profiles
from minicache.runtime.manifest import Manifest
from minicache.runtime.ort import CPU
from minicache.runtime.session import Session
from tests.exporter.engines import MODELS, export_for_tensorrt, half_workplace
from tests.runtime.conftest import fake_trt
from tests.runtime.fake_tensorrt import FakeTensorrt, write_engine

__all__ = ["fake_trt"]  # a fixture

REFERENCE: dict[str, dict[str, Any]] = {
    "exact": {},
    "paper": {"start_layer": 0, "retention": "budget:0.1"},
    "subspace": {},
}


def walk(session: Session) -> np.ndarray:
    """Ragged prefill beyond the window, decode steps, going back: all logits, [positions, V]."""
    rng = np.random.default_rng(5)
    ids = rng.integers(1, min(session.manifest.vocab_size, 250), (2, 60))
    found = [session.forward(ids[:, :40], [40, 33])]
    found += [session.forward(ids[:, step : step + 1]) for step in range(40, 46)]
    session.rewind([2, 1])
    found.append(session.forward(ids[:, 46:52], [6, 0]))
    return np.concatenate([part.reshape(-1, part.shape[-1]) for part in found])


@pytest.mark.slow
@pytest.mark.usefixtures("ort_library")
@pytest.mark.parametrize(
    ("model", "mode"),
    [
        ("llama3-gqa", "exact"),
        ("phi3", "paper"),
        ("qwen3", "subspace"),
        ("qwen3-genai", "exact"),
        ("llama3-torch", "exact"),
        ("llama3-mobius", "exact"),
    ],
)
def test_a_lowered_graph_gives_the_exports_logits(
    model: str, mode: str, tmp_path: Path, fake_trt: FakeTensorrt
) -> None:
    place = half_workplace(tmp_path, MODELS[model])
    folder = export_for_tensorrt(place, mode).folder
    options = dict(REFERENCE[mode])
    if mode == "subspace":
        options["plan"] = folder / "plan.json"
    options |= {"target": "ort-cuda", "no_kernels": True}  # codes as on TensorRT
    reference = place.export("reference", mode=mode, **options).folder
    assert Manifest.load(folder).state == Manifest.load(reference).state
    write_engine(folder, engine_profiles(Manifest.load(folder), 2))
    with Session(folder, batch_size=2) as session:
        actual = walk(session)
        assert all(one == other for one, other in session.state_pointers().values())
    with Session(reference, batch_size=2, threads=1, providers=[CPU]) as session:
        expected = walk(session)
    found = compare("all", actual, expected, exact=mode == "exact")
    assert found["passed"], found
