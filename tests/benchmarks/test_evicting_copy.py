"""A copy of an export with ``--evict`` added computes what such an export computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.evicting_copy import evicting_copy
from minicache.runtime import Session
from minicache.runtime.manifest import Manifest
from tests.exporter.subspace_workplace import CAPACITY, SLACK, Workplace

pytestmark = pytest.mark.usefixtures("ort_library")


@pytest.mark.parametrize(
    "mode", [{"mode": "exact", "rewind_slack": SLACK}, {"mode": "paper", "retention": "none"}],
    ids=["exact", "paper"],
)  # fmt: skip
def test_a_copy_is_the_export(tmp_path: Path, mode: dict[str, Any]) -> None:
    place = Workplace.make(tmp_path, "onnx-llama3-gqa-optimum-fp32")
    plain, wanted = place.export("plain", **mode), place.export("wanted", evict="h2o:80", **mode)
    evicting_copy(plain.folder, tmp_path / "copy", "h2o:80")
    copied = Manifest.load(tmp_path / "copy")
    assert copied.eviction == wanted.manifest.eviction
    assert {state.past for state in copied.state} == {s.past for s in wanted.manifest.state}
    ids = np.random.default_rng(3).integers(1, 200, (1, CAPACITY))
    with Session(tmp_path / "copy") as mine, Session(wanted.folder) as its:
        for start in range(0, CAPACITY, 40):
            part = ids[:, start : start + 40]
            np.testing.assert_array_equal(mine.forward(part), its.forward(part))
        assert mine.cache_tensors()["past_minicache.0.evicted"].max() >= 96
