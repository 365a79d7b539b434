"""``--evict`` for targets whose state lies on a device, from the option to the session."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from minicache.exporter import plan_subspace, schemas, stored_calibration
from minicache.exporter.kernels import kernel_keys
from minicache.exporter.plan import Group, Plan
from minicache.exporter.plan_file import write_plan
from minicache.plugins.triton.variant import parse_key
from minicache.runtime import device_binding, open_model
from minicache.runtime.device_binding import DeviceModel
from minicache.runtime.engine_profile import engine_profiles
from minicache.runtime.manifest import KERNELS_NAME, Manifest
from minicache.runtime.ort import CPU
from minicache.runtime.session import Session
from tests.exporter.subspace_workplace import CAPACITY, SINKS, SLACK, WINDOW, Workplace
from tests.runtime.conftest import fake_trt
from tests.runtime.eviction.device_walk import poison
from tests.runtime.fake_tensorrt import FakeTensorrt, write_engine
from tests.runtime.reference_graph import ReferenceGraph

__all__ = ["fake_trt"]  # a fixture

FP16 = "onnx-llama3-gqa-optimum-fp16"
SEGMENT = 64  # tokens that share a frame
CASES = [
    ("exact", "streaming:4+76"),
    ("exact", "h2o:80"),
    ("subspace", "streaming:4+76"),
    ("subspace", "snapkv:80"),
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workplace:
    for module in (stored_calibration, plan_subspace):
        monkeypatch.setattr(module, "SEGMENT_LENGTH", SEGMENT)
    return Workplace.make(tmp_path, FP16)


def options_of(place: Workplace, mode: str, policy: str) -> dict[str, Any]:
    """One code for both kv heads of two layers, as a head of 8 numbers is too small for a GPU."""
    given = {"target": "ort-cuda", "no_kernels": True, "evict": policy}
    if mode == "exact":
        return {**given, "mode": "exact", "rewind_slack": SLACK}
    groups = tuple(
        Group((layer, layer + 1), "subspace", code_heads=1, key_bits_per_element=6.0,
              value_bits_per_element=4.6)
        for layer in (0, 2)
    )  # fmt: skip
    plan = place.root / "mine.json"
    write_plan(Plan("subspace", groups, CAPACITY, WINDOW, SINKS, SLACK), plan)
    return {**given, "plan": plan}


def walk(session: Session, *, spoil: bool) -> list[np.ndarray]:
    """A text longer than a row's slots on one row, a short one on the other; going back, a fork."""
    ids = np.random.default_rng(3).integers(1, 200, (2, CAPACITY))

    def call(tokens: np.ndarray, lengths: list[int] | None = None) -> np.ndarray:
        found = session.forward(tokens, lengths)
        if spoil:
            poison(session)
        return found

    found = [session.prefill(ids[:, :100], [100, 20], chunk=24)]
    found += [call(ids[:, at : at + 16], [16, 3]) for at in range(100, 228, 16)]
    found += [call(ids[:, at : at + 1]) for at in range(228, 238)]
    session.rewind([6, 2])
    found.append(call(ids[:, :4]))
    session.fork(0, [1])
    found.append(call(ids[:, :5]))
    assert session.lengths.tolist() == [241, 241]
    return found


@pytest.mark.usefixtures("ort_library")
@pytest.mark.parametrize(("mode", "policy"), CASES)
def test_a_folder_for_cuda_evicts_on_a_device(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, mode: str, policy: str
) -> None:
    """ONNX Runtime runs the graph on values that are not the cache's arrays, with CPU kernels."""
    result = place.export("out", **options_of(place, mode, policy))
    assert result.manifest.eviction["policy"] == policy
    assert not result.manifest.eviction["tiled"]
    given: dict[str, Any] = {
        "batch_size": 2, "threads": 1, "providers": [CPU], "cache_tokens": 176,
    }  # fmt: skip
    with Session(result.folder, **given) as session:
        expected = walk(session, spoil=False)
        tables = [
            array[0].tolist()
            for past, array in session._cache.arrays.items()
            if past.endswith(".evicted")
        ]
        assert all(table[-1] >= 241 - 176 for table in tables)
        if mode == "subspace":  # keys have frames, and tokens of several of them are gone
            lengths = result.manifest.eviction["segment_lengths"]
            assert set(lengths.values()) == {SEGMENT}
            assert all(len(set(table)) > 2 for table in tables)
    monkeypatch.setattr(device_binding, "_DEVICE", ("cpu", 0))
    monkeypatch.setattr(open_model, "BoundModel", DeviceModel)
    with Session(result.folder, **given) as session:
        assert isinstance(session._model, DeviceModel)
        actual = walk(session, spoil=True)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("ort_library")
@pytest.mark.parametrize("target", ["ort-cuda", "tensorrt"])
@pytest.mark.parametrize("mode", ["exact", "subspace"])
def test_graphs_carry_the_table(place: Workplace, mode: str, target: str) -> None:
    """Graph inputs and outputs, the nodes between them, and the kernels that find slots by it."""
    options = {**options_of(place, mode, "streaming:4+76"), "target": target}
    result = place.export("out", **options, verify_documents=1)
    graph = onnx.load(result.folder / "model.onnx", load_external_data=False).graph
    segments = -(-CAPACITY // SEGMENT) if mode == "subspace" else 1
    tables = {
        value.name: value.type.tensor_type
        for value in graph.input
        if value.name.endswith(".evicted")
    }
    groups = 2 if mode == "subspace" else 4
    assert sorted(tables) == [f"past_minicache.{group}.evicted" for group in range(groups)]
    for table in tables.values():
        assert table.elem_type == onnx.TensorProto.INT32
        assert table.shape.dim[1].dim_value == segments + 1
    latest = {name: name for name in tables}  # what each node is to take
    for node in graph.node:
        if node.op_type == schemas.OP_TYPE:
            (past,) = (name for name, value in latest.items() if value in node.input)
            returned = [name for name in node.output if name.endswith("evicted")]
            if target == "tensorrt":
                assert len(returned) == 1
            latest[past] = returned[0] if returned else past
    outputs = [value.name for value in graph.output if value.name.endswith(".evicted")]
    assert sorted(latest.values()) == sorted(outputs)
    assert sorted(outputs) == [name.replace("past_", "present_") for name in sorted(tables)]
    evicting = {
        variant.kernel
        for variant in map(parse_key, kernel_keys(result.folder, result.manifest))
        if dict(variant.constants).get("EVICTS")
    }
    coded = {"project", "attend_codes", "quantise_joint"}
    assert evicting == (coded if mode == "subspace" else {"attend_exact", "store"})


@pytest.mark.usefixtures("ort_library")
@pytest.mark.parametrize("target", ["ort-cuda", "tensorrt"])
@pytest.mark.parametrize(("mode", "policy"), [("exact", "h2o:80"), ("subspace", "snapkv:80")])
def test_policies_that_choose_by_attention_bring_what_adds_it_up(
    place: Workplace, mode: str, policy: str, target: str
) -> None:
    """A state per group, in and out of the graph, and kernels that fill it."""
    options = {**options_of(place, mode, policy), "target": target}
    result = place.export("out", **options, verify_documents=1)
    graph = onnx.load(result.folder / "model.onnx", load_external_data=False).graph
    masses = [value for value in graph.input if value.name.endswith(".attention_mass")]
    assert len(masses) == (2 if mode == "subspace" else 4)
    assert {mass.type.tensor_type.elem_type for mass in masses} == {onnx.TensorProto.FLOAT}
    outputs = {value.name for value in graph.output}
    assert {mass.name.replace("past_", "present_") for mass in masses} <= outputs
    launched = map(parse_key, kernel_keys(result.folder, result.manifest))
    added = {variant.kernel for variant in launched if variant.kernel.startswith("observe")}
    coded = {"observe_codes"} if mode == "subspace" else set()
    assert added == {"observe_sum", "observe_exact"} | coded


@pytest.mark.usefixtures("ort_library")
@pytest.mark.parametrize("mode", ["exact", "subspace"])
def test_an_engine_evicts(
    place: Workplace, fake_trt: FakeTensorrt, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """The lowered graph on a TensorRT that is faked, and in the host's memory."""
    options = {**options_of(place, mode, "streaming:4+76"), "target": "tensorrt"}
    folder = place.export("out", **options).folder
    host = Path(shutil.copytree(folder, place.root / "host"))
    dataclasses.replace(Manifest.load(folder), target="ort-cpu").save(host)
    (folder / KERNELS_NAME).mkdir()
    (folder / KERNELS_NAME / "kernels.bin").write_bytes(b"none")
    write_engine(folder, engine_profiles(Manifest.load(folder), 2))
    with Session(folder, batch_size=2, cache_tokens=176) as session:
        actual = walk(session, spoil=True)
        assert all(one == other for one, other in session.state_pointers().values())
        tables = session.cache_tensors()["past_minicache.0.evicted"]
        assert tables[:, -1].min() >= 241 - 176
        assert fake_trt.driver.moved
    monkeypatch.setattr(open_model, "open_graph", ReferenceGraph)
    with Session(host, batch_size=2, cache_tokens=176) as session:
        expected = walk(session, spoil=False)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other)
