"""The ``subspace`` mode from graph to folder: what it promises is what the folder holds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from minicache.exporter import io, stored_calibration
from minicache.exporter.calibration.calibration import Calibration
from minicache.exporter.pipeline import ExportResult
from minicache.exporter.planner.search import Search
from minicache.exporter.sizes import cache_size
from minicache.runtime import Session
from minicache.runtime.errors import MiniCacheError, OutputError, PlanError
from tests.exporter.subspace_workplace import CAPACITY, SINKS, SLACK, WINDOW, Workplace

pytestmark = pytest.mark.usefixtures("ort_library")

MODELS = [
    "onnx-llama3-gqa-optimum-fp32",
    "onnx-llama3-gqa-optimum-fp16",
    "genai-llama3-gqa-h16-cpu-int4",
]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """Of the F1 model; what one test calibrated and measured serves the others."""
    return Workplace.make(tmp_path_factory.mktemp("subspace"), MODELS[0])


@pytest.fixture(scope="module")
def exported(workplace: Workplace, ort_library: Path) -> ExportResult:
    return workplace.export("out", ratio=4.0, verify_documents=2)


def tables(folder: Path) -> dict[str, np.ndarray]:
    """The codec's constants in a graph."""
    graph = onnx.load(folder / "model.onnx").graph
    found = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in graph.initializer
        if tensor.name.startswith("minicache/")
    }
    assert found
    return found


def manifest_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "minicache.json").read_text(encoding="utf-8")))


def assert_same_codes(folder: Path, other: Path) -> None:
    """Equal state, equal tables bit by bit."""
    one, two = manifest_of(folder), manifest_of(other)
    for name in ("state", "plan", "mode", "window", "rewind_slack"):
        assert one[name] == two[name], name
    ours, theirs = tables(folder), tables(other)
    assert list(ours) == list(theirs)
    for name, array in ours.items():
        assert array.dtype == theirs[name].dtype
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)


@pytest.mark.parametrize("name", MODELS)
def test_an_export_runs_and_holds_what_its_report_says(name: str, tmp_path: Path) -> None:
    """Bits, bytes per token, window, sinks and rewind slack, from plan to allocated memory."""
    place = Workplace.make(tmp_path, name)
    result = place.export("out", ratio=3.0, max_group_size=2)
    manifest, report = result.manifest, result.report
    plain = 2 * 2 * manifest.num_layers * manifest.num_kv_heads * manifest.head_dim
    plan = json.loads((tmp_path / "out" / "plan.json").read_text(encoding="utf-8"))
    assert manifest.mode == "subspace" == report["mode"]
    assert plan == manifest_of(tmp_path / "out")["plan"]
    assert (manifest.window, manifest.rewind_slack) == (WINDOW, SLACK)
    assert (plan["window"], plan["slack"], plan["sinks"]) == (WINDOW, SLACK, SINKS)
    for group, asked in zip(report["groups"], plan["groups"], strict=True):
        assert group["layers"] == asked["layers"] and len(group["layers"]) <= 2
        for kind in ("key", "value"):
            bits = asked[f"{kind}_bits_per_element"]
            assert group[f"{kind}_bits_per_element"] <= bits + 1e-4
    coded = sum(group["bytes_per_token"] for group in report["groups"])
    assert coded <= plain / 3
    (chosen,) = [point for point in report["frontier"] if point["chosen"]]
    assert chosen["bytes_per_token"] == coded
    with Session(tmp_path / "out") as session:
        tensors = session.cache_tensors()
        codes = sum(t.nbytes for key, t in tensors.items() if "code" in key or "magnitude" in key)
        assert codes == coded * CAPACITY
        ring = SINKS + WINDOW + SLACK
        assert session.cache_bytes == codes + ring * plain
        assert session.cache_bytes == cache_size(manifest, CAPACITY).resident < CAPACITY * plain / 2
        logits = session.forward(np.arange(100, dtype=np.int64)[None])
        assert np.isfinite(logits).all()


def test_tables_are_stored_in_fp16(exported: ExportResult) -> None:
    """A step on a CPU takes as long as reading them does; steps stay fp32."""
    stored = tables(exported.folder)
    types = {name.rpartition("/")[2]: array.dtype for name, array in stored.items()}
    found = {name: dtype for name, dtype in types.items() if "coder" in name}
    sides = {name.partition(".")[0] for name in found}
    assert sides == {"key_encoder", "key_decoder", "value_encoder", "value_decoder"}
    assert set(found.values()) == {np.dtype(np.float16)}
    assert types["key_step"] == types["value_step"] == np.float32


def test_quality_and_rivals_are_measured_on_text_that_nothing_was_fitted_to(
    exported: ExportResult, workplace: Workplace
) -> None:
    report = exported.report
    assert exported.evaluation is not None and report["quality"]["tokens"] > 0
    assert report["quality"]["kl_mean"] > 0
    assert {"static-int8", "static-int4"} <= {rival["name"] for rival in report["rivals"]}
    assert report["calibration_tokens"] <= 3000
    saved = (exported.folder / "report.json").read_text(encoding="utf-8")
    assert json.loads(saved) == report
    assert str(workplace.root) not in saved


def test_the_frontier_is_truthful(exported: ExportResult) -> None:
    """More bytes predict less loss in one structure, and ratios are those of the bytes."""
    points = exported.report["frontier"]
    assert len(points) >= 3 and sum(point["chosen"] for point in points) == 1
    for point in points:
        assert point["ratio"] == pytest.approx(16 / point["bits_per_element"], rel=1e-3)
        assert point["bytes_read"] >= point["bytes_per_token"]
        assert point["perplexity_ratio_low"] <= point["perplexity_ratio_high"]
    assert all(point["ratio"] >= 4 for point in points if point["chosen"])


def test_another_ratio_needs_no_second_calibration(
    exported: ExportResult, workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor are the layers measured again."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(stored_calibration, "calibrate", never)
    monkeypatch.setattr("minicache.exporter.planner.search.measure_sensitivities", never)
    result = workplace.export("smaller", ratio=8.0)
    assert result.report["groups"] != exported.report["groups"]
    assert result.manifest.plan["sensitivities"] == exported.manifest.plan["sensitivities"]


def test_a_plan_makes_the_same_export_again(
    exported: ExportResult, workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a search; window, sinks and rewind slack come from the plan, too."""
    monkeypatch.setattr(Search, "run", None)
    workplace.export("again", plan=workplace.root / "out" / "plan.json")
    assert_same_codes(workplace.root / "out", workplace.root / "again")


def test_a_plan_keeps_its_own_exact_part(
    workplace: Workplace, exported: ExportResult, tmp_path: Path
) -> None:
    """Options at their defaults say otherwise, and the session may take back only what it can."""
    plan = json.loads((workplace.root / "out" / "plan.json").read_text(encoding="utf-8"))
    plan |= {"window": 8, "sinks": 2, "slack": 5}
    (tmp_path / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    result = workplace.export("other-window", plan=tmp_path / "plan.json")
    assert (result.manifest.window, result.manifest.rewind_slack) == (8, 5)
    with Session(result.folder) as session:
        session.forward(np.arange(60, dtype=np.int64)[None])
        session.rewind(5)
        with pytest.raises(MiniCacheError):
            session.rewind(6)
    workplace.export("other-again", plan=result.folder / "plan.json")
    assert_same_codes(result.folder, workplace.root / "other-again")


def test_a_plan_by_hand_may_leave_layers_exact(
    workplace: Workplace, exported: ExportResult, tmp_path: Path
) -> None:
    """Groups and bits are enough."""
    coded = {"code_heads": 1, "key_bits_per_element": 4, "value_bits_per_element": 3.5}
    layers = exported.manifest.num_layers
    groups = [{"layers": [0]}, {"layers": [1, 2], **coded}]
    groups += [{"layers": [layer]} for layer in range(3, layers)]
    (tmp_path / "mine.json").write_text(json.dumps({"groups": groups}), encoding="utf-8")
    result = workplace.export("mine", plan=tmp_path / "mine.json")
    assert result.report["merged_groups"] == [[1, 2]]
    assert result.report["exact_layers"] == layers - 2
    with Session(workplace.root / "mine") as session:
        assert np.isfinite(session.forward(np.arange(150, dtype=np.int64)[None])).all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"key_bits_per_element": 0.2}, "0.2 bits per element"),
        ({"code_heads": 3}, "code_heads is 3; give a divisor of the 2 kv heads"),
        ({"layers": [0, 1, 2, 3, 4, 5]}, "layers"),
    ],
)
def test_a_plan_that_does_not_fit_the_model_leaves_nothing_behind(
    workplace: Workplace,
    exported: ExportResult,
    tmp_path: Path,
    changes: dict[str, Any],
    words: str,
) -> None:
    """What a plan file cannot know is told when the model is known."""
    group = {"layers": [0, 1, 2, 3], "code_heads": 2}
    group |= {"key_bits_per_element": 4.0, "value_bits_per_element": 4.0, **changes}
    (tmp_path / "plan.json").write_text(json.dumps({"groups": [group]}), encoding="utf-8")
    before = sorted(path.name for path in workplace.root.iterdir())
    with pytest.raises(PlanError) as error:
        workplace.export("wrong", plan=tmp_path / "plan.json")
    assert words in str(error.value)
    assert sorted(path.name for path in workplace.root.iterdir()) == before


def test_layers_of_different_kind_share_no_group(
    workplace: Workplace, exported: ExportResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Calibration.load

    def load(path: Path) -> Calibration:
        found = original(path)
        object.__setattr__(found.layers[1], "kind", 7)
        return found

    monkeypatch.setattr(Calibration, "load", load)
    with pytest.raises(PlanError, match="layers 0 and 1 are of different kind"):
        workplace.export("mixed", plan=workplace.root / "out" / "plan.json")


def test_large_tables_lie_beside_the_graph(
    workplace: Workplace, exported: ExportResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a file of their own, which the session finds: the weights' file stays as it is."""
    plan = workplace.root / "out" / "plan.json"
    monkeypatch.setattr(io, "SINGLE_FILE_BYTES", 1000)
    result = workplace.export("large", plan=plan)
    names = {path.name for path in (workplace.root / "large").iterdir()}
    assert {io.MODEL_NAME, io.DATA_NAME, io.CODEC_NAME} <= names
    assert_same_codes(workplace.root / "out", result.folder)
    ids = np.arange(90, dtype=np.int64)[None]
    with Session(result.folder) as session, Session(workplace.root / "out") as usual:
        np.testing.assert_array_equal(session.forward(ids), usual.forward(ids))


def test_what_the_export_reads_is_never_overwritten(
    workplace: Workplace, exported: ExportResult
) -> None:
    """A calibration text or a plan inside of the folder that would be replaced."""
    inside = workplace.root / "out" / "mine"
    shutil.copy(workplace.root / "out" / "plan.json", inside)
    before = inside.read_bytes()
    for reads in ({"calibration": inside, "ratio": 4.0}, {"plan": inside}):
        with pytest.raises(OutputError, match="which the export reads"):
            workplace.export("out", overwrite=True, **reads)
    assert inside.read_bytes() == before
    inside.unlink()
