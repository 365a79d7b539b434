"""Every supported graph in every mode: kernels equal the reference in each node, bytes are right.

The weights are random, so nothing is said about quality here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from minicache.exporter import schemas
from minicache.runtime.errors import PlanError
from tests.exporter.graphs import EXPORTS, MORE_EXPORTS, SHARED
from tests.exporter.judged_export import MODES, export_in_mode, judge_export, watch
from tests.exporter.node_by_node import Change, NodeByNode
from tests.exporter.subspace_workplace import Workplace

ONE_ROW = "onnx-llama3-gqa-hfgen-multi_b1_ortcpu"
NAMES = [fixture.name for fixture in EXPORTS]
# One of every form and type for the quick tests.
FIRST = {(fixture.form, fixture.dtype): fixture.name for fixture in reversed(EXPORTS)}.values()
SLOW_LATER = [pytest.param(name, marks=[] if name in FIRST else pytest.mark.slow) for name in NAMES]
# Layers of sliding-window attention stay exact, and a model that has no others is refused: nothing
# in it would be smaller. The paper merges neighbours only.
NOTHING_TO_CODE = r"all 4 layers attend to a sliding window.*there is nothing to code"
NOTHING_TO_MERGE = r"no 2 layers from layer \d on are alike.*use --mode "
REFUSED = {
    ("onnx-mistral-sw-optimum-fp32", "paper"): f"{NOTHING_TO_MERGE}exact",
    ("onnx-mistral-sw-optimum-fp32", "subspace"): NOTHING_TO_CODE,
    ("onnx-gemma3-optimum-fp32", "paper"): f"{NOTHING_TO_MERGE}subspace",
}
SIX_LAYERS = {"paper": [[2, 3], [4, 5]], "subspace": [[0, 1], [2, 3], [4, 5]]}
CODED: dict[str, dict[str, list[list[int]]]] = {
    "genai-llama3-gqa-h16-cpu-int4": SIX_LAYERS,
    "genai-llama3-gqa-h16-cuda-fp16": SIX_LAYERS,
    "onnx-gemma2-optimum-fp32": {"paper": [[1, 3]], "subspace": [[1, 3]]},
    "genai-gemma2-cpu-fp32": {"paper": [[1, 3]], "subspace": [[1, 3]]},
    "onnx-gemma3-optimum-fp32": {"subspace": [[5]]},
}
USUAL: dict[str, list[list[int]]] = {"exact": [], "paper": [[2, 3]], "subspace": [[0, 1], [2, 3]]}


def shared_place(root: Path, name: str) -> Workplace:
    if not (SHARED / name).is_dir():
        pytest.skip(f"{name} is not in this checkout: it is kept with the shared fixtures")
    return Workplace.make(root, str(SHARED / name))


def check(place: Workplace, name: str, mode: str, library: Path) -> None:
    kind = str(MODES[mode]["mode"])
    if (name, kind) in REFUSED:
        with pytest.raises(PlanError, match=REFUSED[name, kind]):
            export_in_mode(place, mode)
        return
    verdict = judge_export(place, mode, library)
    assert verdict.coded == (USUAL | CODED.get(name, {}))[kind]
    assert (verdict.resident < verdict.exact) == (mode != "exact")


@pytest.mark.parametrize("mode", ["paper", "subspace"])
@pytest.mark.parametrize("name", SLOW_LATER)
def test_nodes_and_bytes(name: str, mode: str, tmp_path: Path, ort_library: Path) -> None:
    check(Workplace.make(tmp_path, name), name, mode, ort_library)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["exact", "aligned"])
@pytest.mark.parametrize("name", NAMES)
def test_other_modes(name: str, mode: str, tmp_path: Path, ort_library: Path) -> None:
    check(Workplace.make(tmp_path, name), name, mode, ort_library)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MORE_EXPORTS)
def test_more_producers_and_models(name: str, mode: str, tmp_path: Path, ort_library: Path) -> None:
    check(shared_place(tmp_path, name), name, mode, ort_library)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_graph_of_one_row(mode: str, tmp_path: Path, ort_library: Path) -> None:
    """It is calibrated row by row; of its two files only one takes a cache."""
    place = shared_place(tmp_path, ONE_ROW)
    (place.model / "prefill.onnx").unlink()
    (place.model / "decode.onnx").rename(place.model / "model.onnx")
    check(place, ONE_ROW, mode, ort_library)


class Watched:
    """Exports of one model, to be run as they should not."""

    def __init__(self, root: Path, library: Path) -> None:
        self.library = library
        self.place = Workplace.make(root, "onnx-llama3-gqa-optimum-fp32")
        self.folders = {m: export_in_mode(self.place, m).folder for m in ("paper", "subspace")}

    def run(self, mode: str, change: Change | None = None) -> None:
        watch(self.folders[mode], self.library, change)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory, ort_library: Path) -> Watched:
    return Watched(tmp_path_factory.mktemp("watched"), ort_library)


def set_attribute(layer: int, name: str, value: object) -> Change:
    """The node of a layer with another attribute."""

    def change(model: onnx.ModelProto) -> None:
        node = [n for n in model.graph.node if n.domain == schemas.DOMAIN][layer]
        kept = [a for a in node.attribute if a.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, onnx.helper.make_attribute(name, value)])

    return change


def scale_constant(part: str, factor: float) -> Change:
    """A table of the first group times a factor."""

    def change(model: onnx.ModelProto) -> None:
        (found,) = (x for x in model.graph.initializer if x.name.endswith(part))
        array = numpy_helper.to_array(found)
        found.CopyFrom(numpy_helper.from_array((array * factor).astype(array.dtype), found.name))

    return change


def swap_inputs(layer: int, first: int, second: int) -> Change:
    """The node of a layer with two of its inputs in each other's place, counted from the end."""

    def change(model: onnx.ModelProto) -> None:
        node = [n for n in model.graph.node if n.domain == schemas.DOMAIN][layer]
        names = node.input[first], node.input[second]
        node.input[second], node.input[first] = names

    return change


@pytest.mark.parametrize(
    ("mode", "change", "words"),
    [
        ("paper", set_attribute(2, "scale", 0.36), "layer 0"),  # 0.3536 is right
        ("paper", set_attribute(3, "slerp_t", 0.61), "key_code"),
        ("paper", set_attribute(3, "key_head_permutation", [1, 0, 0, 1]), "retained_key"),
        ("paper", swap_inputs(3, -1, -2), "exact_key"),  # k_0 and v_0
        ("subspace", set_attribute(0, "window", 7), "layer 0"),
        ("subspace", scale_constant("group0/key_step", 1.1), "code components differ"),
        ("subspace", scale_constant("group0/value_decoder.0", 1.001), "layer 0"),
        ("subspace", scale_constant("group0/rope_frequencies", 1.01), "key_magnitude"),
        ("subspace", swap_inputs(1, -1, -2), "exact_key"),
    ],
)
def test_the_judge_sees_a_wrong_node(
    watched: Watched, mode: str, change: Change, words: str
) -> None:
    """The right one is in the folder, and runs."""
    with pytest.raises(AssertionError, match=words):
        watched.run(mode, change)


@pytest.mark.parametrize("mode", ["paper", "subspace"])
def test_the_right_graphs_pass(watched: Watched, mode: str) -> None:
    watched.run(mode)


@pytest.mark.parametrize(
    ("mode", "state"),
    [
        ("paper", "2.exact_value"),
        ("paper", "2.key_code"),
        ("paper", "2.value_magnitude"),
        ("paper", "2.retained_position"),
        ("subspace", "1.exact_key"),
        ("subspace", "1.value_code"),
        ("subspace", "1.key_magnitude"),
    ],
)
def test_the_judge_sees_a_damaged_slot(
    watched: Watched, mode: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bit of a slot that the call has written, or should have left alone."""
    run = NodeByNode.run

    def damaged(self: NodeByNode, fed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        got = run(self, fed)
        array = self.cache.arrays[f"past_minicache.{state}"]
        array.reshape(-1).view(np.uint8)[5 * array.itemsize + array.itemsize // 2] ^= 0x10
        return got

    monkeypatch.setattr(NodeByNode, "run", damaged)
    with pytest.raises(AssertionError, match=state[2:]):
        watched.run(mode)
