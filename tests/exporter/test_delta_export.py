"""``--delta-bits`` and ``--delta-rank`` from graph to folder: it holds what they promise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from minicache.exporter import ExportOptions, stored_calibration
from minicache.exporter.estimation.compare import Question, compare
from minicache.exporter.estimation.find_geometry import find_geometry
from minicache.exporter.estimation.geometry import Geometry
from minicache.exporter.plan import Group
from minicache.exporter.schemas import DOMAIN, OP_TYPE, attributes_with_defaults
from minicache.exporter.targets import TARGETS
from minicache.plugins.triton.node_variants import node_variants
from minicache.runtime import Session
from minicache.runtime.errors import PlanError
from tests.exporter.judged_export import watch
from tests.exporter.subspace_workplace import Workplace

MODELS = [
    "onnx-llama3-gqa-optimum-fp32",
    "onnx-llama3-gqa-optimum-fp16",
    "genai-llama2-mha-cpu-fp32",
    "genai-llama3-gqa-h16-cpu-int4",
]
KINDS: list[dict[str, Any]] = [
    {"delta_bits": 4, "retention": "none"},
    {"delta_bits": 2, "code_bits": 4, "align": True, "retention": "budget:0.1"},
    {"delta_rank": 2, "code_bits": 8, "retention": "minmax:0.05"},
    {"delta_rank": 1, "align": True, "magnitude": "blended", "retention": "none"},
]


def settings(place: Workplace, **given: Any) -> dict[str, Any]:
    """Options of an export whose calibration, if any, reads the place's text."""
    text = {"calibration": place.text, "calibration_tokens": 3000, "cache": place.cache}
    calibrates = "delta_rank" in given or "align" in given
    return {"mode": "paper", "sinks": 2, **(text if calibrates else {}), **given}


@pytest.fixture(scope="module", params=MODELS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return Workplace.make(tmp_path_factory.mktemp("deltas"), request.param)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return Workplace.make(tmp_path_factory.mktemp("deltas"), MODELS[0])


@pytest.mark.parametrize("given", KINDS, ids=str)
def test_nodes_agree_with_the_reference(
    place: Workplace, given: dict[str, Any], ort_library: Path
) -> None:
    """Every node, over a ragged text from poisoned memory; and the folder says what it is."""
    result = place.export("out", overwrite=True, **settings(place, **given))
    report, folder = result.report, result.folder
    graph = onnx.load(folder / "model.onnx", load_external_data=False).graph
    nodes = [node for node in graph.node if node.domain == DOMAIN]
    wanted = given.get("delta_bits", 0), given.get("delta_rank", 0)
    merged = {layer for group in report["merged_groups"] for layer in group}
    for layer, node in enumerate(nodes):
        numbers = {a.name: a.i for a in node.attribute}
        found = numbers.get("delta_bits", 0), numbers.get("delta_rank", 0)
        assert found == (wanted if layer in merged else (0, 0))
    plan = json.loads((folder / "plan.json").read_text())
    pairs = [group for group in plan["groups"] if group["mode"] == "slerp"]
    assert pairs
    assert all(group["slerp_t"] == 0.5 for group in pairs)
    if "delta_rank" in given:
        assert [row["layers"] for row in report["deltas"]] == report["merged_groups"]
        assert all(0 < row[kind] <= 1 for row in report["deltas"] for kind in ("key", "value"))
        assert any("deltas keep" in note for note in report["notes"])
    watch(folder, ort_library)
    with Session(folder) as session:
        ids = np.arange(60, dtype=np.int64)[None] % session.manifest.vocab_size
        assert np.isfinite(session.forward(ids)).all()


def test_deltas_bring_the_logits_back(first: Workplace) -> None:
    """Nearer to the exact model with every step: no delta, 2 bits, 4 bits."""
    ids = np.arange(150, dtype=np.int64)[None] * 7 % 250
    variants = [{"slerp_t": 0.5}, {"delta_bits": 2}, {"delta_bits": 4}]
    logits = []
    for number, given in enumerate([{"mode": "exact"}, *variants]):
        options = given if "mode" in given else settings(first, retention="none", **given)
        with Session(first.export(f"logits{number}", **options).folder) as session:
            session.forward(ids[:, :100])
            logits.append(session.forward(ids[:, 100:]))
    errors = [float(np.sqrt(np.mean((found - logits[0]) ** 2))) for found in logits[1:]]
    assert errors[1] < 0.7 * errors[0]
    assert errors[2] < 0.5 * errors[1]


def test_going_back_is_exact(first: Workplace) -> None:
    """After a rewind the session goes on as if the dropped tokens had never been there."""
    folder = first.export("rewind", **settings(first, delta_bits=4, retention="none")).folder
    ids = np.arange(120, dtype=np.int64)[None] * 3 % 250
    with Session(folder) as session, Session(folder) as other:
        session.forward(ids[:, :90])
        session.forward(ids[:, 100:110])
        session.rewind(10)
        other.forward(ids[:, :90])
        np.testing.assert_array_equal(session.forward(ids[:, 90:]), other.forward(ids[:, 90:]))


def test_a_saved_row_holds_its_deltas(first: Workplace) -> None:
    """A row that another session takes up goes on there as here, to the bit."""
    folder = first.export("saved", **settings(first, delta_rank=2, retention="none")).folder
    ids = np.arange(120, dtype=np.int64)[None] * 3 % 250
    with Session(folder) as session, Session(folder) as other:
        session.forward(ids[:, :100])
        session.save(first.root / "row.npz")
        other.forward(ids[:, 50:70])
        other.load(first.root / "row.npz")
        np.testing.assert_array_equal(session.forward(ids[:, 100:]), other.forward(ids[:, 100:]))


def test_evicted_tokens_take_their_deltas_with_them(first: Workplace, ort_library: Path) -> None:
    """A row longer than its cache: every call of it is the reference's."""
    options = settings(first, delta_bits=2, retention="none", sinks=2)
    folder = first.export("evicts", **options, evict="streaming:2+96").folder
    with Session(folder, cache_tokens=208) as session:
        for start in range(0, 240, 24):
            ids = np.arange(start, start + 24, dtype=np.int64)[None] % 250
            assert np.isfinite(session.forward(ids)).all()
        assert session.lengths[0] == 240
    watch(folder, ort_library)


def test_the_calibration_is_made_once(first: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another rank reads what the first export kept, and keeps more of the deltas."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError

    one = first.export("one", **settings(first, delta_rank=1)).report["deltas"]
    monkeypatch.setattr(stored_calibration, "calibrate", never)
    two = first.export("two", **settings(first, delta_rank=2)).report["deltas"]
    for narrow, wide in zip(one, two, strict=True):
        assert wide["key"] > narrow["key"]
        assert wide["value"] > narrow["value"]


def test_an_estimate_counts_what_an_export_holds(first: Workplace) -> None:
    """Deltas of 4 bits: as many bytes as a code of 4 bits, and one ratio per head and kind."""
    found = compare(find_geometry(str(first.model / "model.onnx")), Question(context=256), "it")
    sizes = {one.cache: one.resident for one in found.estimates}
    more = sizes["paper, 4 bit, deltas 4 bit"] - sizes["paper, 4 bit"]
    geometry = find_geometry(str(first.model / "model.onnx"))
    assert isinstance(geometry, Geometry)
    layer, pairs, kinds = geometry.layers[0], len(geometry.layers) // 4, 2
    assert more == 256 * pairs * layer.num_kv_heads * kinds * (layer.head_dim // 2 + 2)


GPU_TARGETS = [name for name in TARGETS if name != "ort-cpu"]


@pytest.mark.parametrize("target", GPU_TARGETS)
def test_other_targets_refuse_bases(first: Workplace, target: str) -> None:
    """One sentence, before any work."""
    words = f"--delta-rank 1: the kernels of --target {target} read deltas of bits only"
    with pytest.raises(PlanError, match=words):
        first.export("none", mode="paper", target=target, delta_rank=1)
    assert not (first.root / "none").exists()


@pytest.mark.parametrize("target", GPU_TARGETS)
@pytest.mark.parametrize("bits", [4, 2])
def test_other_targets_take_bits(target: str, bits: int, tmp_path: Path) -> None:
    """The nodes of pairs need the kernels that read and write deltas."""
    place = Workplace.make(tmp_path, MODELS[1])
    options = settings(place, delta_bits=bits, retention="none")
    folder = place.export("out", **options, target=target, no_kernels=True).folder
    graph = onnx.load(folder / "model.onnx", load_external_data=False).graph
    kernels = set()
    for node in graph.node:
        if node.op_type == OP_TYPE:
            given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            given = {n: v.decode() if isinstance(v, bytes) else v for n, v in given.items()}
            attributes = attributes_with_defaults(given)
            assert attributes["code_layout"] == "row" or attributes["mode"] == "exact"
            kernels |= {variant.kernel for variant in node_variants(attributes)}
    assert {"attend_pair", "encode_pair"} <= kernels


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"mode": "subspace", "delta_bits": 4},
            "--delta-bits 4 has no effect with --mode subspace",
        ),
        ({"mode": "exact", "delta_rank": 1}, "--delta-rank 1 has no effect with --mode exact"),
        ({"delta_bits": 3}, "--delta-bits 3 is not one of 4, 2"),
        ({"delta_rank": -1}, "--delta-rank is -1"),
        ({"delta_bits": 4, "delta_rank": 1}, "two ways to keep one delta"),
        ({"delta_bits": 4, "group_size": 3}, "--group-size is 3"),
        ({"delta_rank": 2, "slerp_t": 0.6}, "--slerp-t is 0.6; leave it out or give 0.5"),
        ({"delta_bits": 4, "calibration_tokens": 9}, "--calibration-tokens 9 has no effect"),
    ],
    ids=str,
)
def test_options_that_contradict_are_refused(given: dict[str, Any], words: str) -> None:
    """By name and value, with what to do."""
    with pytest.raises(PlanError, match=words):
        ExportOptions(**{"mode": "paper", **given}).check()


def test_a_rank_beyond_the_head_is_refused(first: Workplace) -> None:
    with pytest.raises(PlanError, match="--delta-rank 99 is more than the"):
        first.export("none", **settings(first, delta_rank=99))


def test_halfway_is_the_default_of_deltas_only() -> None:
    """The paper's t stays the default of its merge."""
    from minicache.exporter.delta_options import merge_parameter

    assert merge_parameter(None, has_deltas=False) == 0.6
    assert merge_parameter(None, has_deltas=True) == 0.5
    assert merge_parameter(0.3, has_deltas=False) == 0.3
    ExportOptions(mode="paper", delta_bits=4, slerp_t=0.5).check()


def test_only_pairs_have_deltas() -> None:
    """A plan that contradicts itself is refused as well."""
    for group in ({"layers": (0, 1, 2)}, {"layers": (0, 1), "slerp_t": 0.6}):
        with pytest.raises(PlanError, match=r"only pairs merged at t = 0\.5 have deltas"):
            Group(**{"mode": "slerp", "slerp_t": 0.5, "delta_bits": 4, **group})
