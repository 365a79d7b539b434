"""``--mode paper --align`` from graph to folder: what it promises is what the folder holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from minicache.exporter import ExportOptions, stored_calibration
from minicache.exporter.plan import Group
from minicache.exporter.schemas import DOMAIN
from minicache.exporter.texts import read_texts
from minicache.runtime import Session
from minicache.runtime.errors import PlanError
from tests.exporter.subspace_workplace import Workplace

pytestmark = pytest.mark.usefixtures("ort_library")

MODELS = [
    "onnx-llama3-gqa-optimum-fp32",
    "onnx-llama3-gqa-optimum-fp16",
    "genai-llama2-mha-cpu-fp32",
    "genai-llama3-gqa-h16-cpu-int4",
]


def settings(place: Workplace, **given: Any) -> dict[str, Any]:
    """Options of an aligned export that calibrates on the place's text."""
    text = {"calibration": place.text, "calibration_tokens": 3000, "cache": place.cache}
    return {"mode": "paper", "align": True, **text, **given}


@pytest.fixture(scope="module", params=MODELS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return Workplace.make(tmp_path_factory.mktemp("aligned"), request.param)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return Workplace.make(tmp_path_factory.mktemp("aligned"), MODELS[0])


@pytest.mark.parametrize(
    "given",
    [
        {"retention": "none"},
        {"retention": "budget:0.1", "code_bits": 8, "group_size": 3, "start_layer": 0},
        {"retention": "minmax:0.05", "code_bits": 4, "magnitude": "blended"},
    ],
    ids=["none", "budget-8-G3", "minmax-4"],
)
def test_the_folder_says_what_it_is_and_runs(place: Workplace, given: dict[str, Any]) -> None:
    """Nodes, plan, manifest and report agree, and a session decodes with finite logits."""
    result = place.export("out", overwrite=True, **settings(place, **given))
    report, folder = result.report, result.folder
    graph = onnx.load(folder / "model.onnx", load_external_data=False).graph
    nodes = [node for node in graph.node if node.domain == DOMAIN]
    flags = [{a.name: a.i for a in node.attribute}.get("has_decoder", 0) for node in nodes]
    plan = json.loads((folder / "plan.json").read_text())
    manifest = json.loads((folder / "minicache.json").read_text())
    assert manifest["plan"] == plan
    aligned = {layer for group in plan["groups"] if group["align"] for layer in group["layers"]}
    assert aligned == {layer for group in report["merged_groups"] for layer in group}
    assert flags == [int(layer in aligned) for layer in range(len(nodes))]
    assert [row["layers"] for row in report["alignment"]] == report["merged_groups"]
    for row in report["alignment"]:
        assert row["value_aligned"] > row["value_raw"]
    assert report["calibration_tokens"] > 2048
    assert any(note.startswith("aligned on") for note in report["notes"])
    assert report["options"]["align"] and report["options"]["calibration"] == "text.txt"
    assert "--align" in report["command"]
    with Session(folder) as session:
        ids = np.arange(60, dtype=np.int64)[None] % session.manifest.vocab_size
        assert np.isfinite(session.forward(ids)).all()
        for token in range(3):
            assert np.isfinite(session.forward(np.array([[token]]))).all()


def test_the_calibration_is_made_once(first: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another export of the same model and text reads what the first one kept."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError

    before = first.export("one", **settings(first)).report["alignment"]
    monkeypatch.setattr(stored_calibration, "calibrate", never)
    assert first.export("two", **settings(first, code_bits=4)).report["alignment"] == before


def test_the_judging_documents_are_held_out(first: Workplace) -> None:
    """No document that is calibrated on judges."""
    options = ExportOptions(**settings(first, verify_documents=2, verify_context=128))
    found = read_texts(first.model, options, 256, 10**6, merged=True)
    assert found is not None and found.split.calibration and len(found.verification) == 2
    calibrated = [" ".join(map(str, document)) for document in found.split.calibration]
    for piece in found.verification:
        assert not any(" ".join(map(str, piece)) in document for document in calibrated)


def test_verification_measures_the_aligned_export(first: Workplace) -> None:
    result = first.export("measured", **settings(first, verify_documents=2))
    assert result.evaluation is not None and result.report["quality"]["documents"] == 2
    assert (result.folder / "report.html").is_file()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"mode": "subspace", "align": True}, "--align has no effect with --mode subspace"),
        ({"mode": "exact", "align": True}, "add --mode paper"),
        (
            {"mode": "paper", "calibration_tokens": 5},
            "--calibration-tokens 5 has no effect with --mode paper; add --mode subspace, --align",
        ),
        ({"mode": "exact", "calibration": Path("a.txt")}, "--calibration a.txt has no effect"),
    ],
)
def test_options_that_would_be_ignored_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        ExportOptions(**given).check()


def test_only_slerp_aligns() -> None:
    with pytest.raises(PlanError, match="only slerp aligns"):
        Group((0,), align=True)
