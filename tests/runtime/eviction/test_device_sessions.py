"""Eviction where the state lies on a device, that is faked: the same tokens, and few copies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicache.exporter.sizes import cache_size
from minicache.runtime.batch import Batch
from minicache.runtime.errors import CapacityError, SessionError
from minicache.runtime.session import Session
from tests.runtime.eviction.device_walk import Pair, poison, walk
from tests.runtime.fake_cuda import Status
from tests.runtime.fake_device import DeviceValue, state_copies
from tests.runtime.fake_tensorrt import FakeTensorrt
from tests.runtime.session_text import text
from tests.runtime.tiny_model import MAX_LENGTH

OpenDevice = Callable[..., Session]
DELTAS = {"retention": "none", "delta_bits": 4, "slerp_t": 0.5}
MODELS: list[tuple[str, dict[str, Any]]] = [
    ("exact", {"evict": "streaming:2+60"}),
    ("exact", {"evict": "h2o:62"}),
    ("exact", {"evict": "snapkv:60"}),
    ("slerp", {"evict": "streaming:2+60"}),
    ("slerp", {"evict": "h2o:62", "retention": "minmax"}),
    ("slerp", {"evict": "snapkv:62"}),
    ("slerp", {"evict": "h2o:62", **DELTAS}),
]
EXACT_H2O, SLERP_H2O = MODELS[1], MODELS[4]


@pytest.mark.parametrize(("variant", "model"), MODELS)
def test_a_device_session_equals_one_on_the_host(
    open_pair: Pair, tmp_path: Path, variant: str, model: dict[str, Any]
) -> None:
    """Logits and state, whatever the host's copy of the state holds in between."""
    session, host = open_pair(variant, model)
    mine = walk(session, tmp_path, spoil=True)
    for one, other in zip(mine, walk(host, tmp_path, spoil=False), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_row_that_is_full_is_cut(open_pair: Pair) -> None:
    """Fewer slots than the prompt has tokens: a policy that waits for the end of it must choose."""
    ids, found = text(2, 150), []
    pair = open_pair("exact", {"evict": "snapkv:60"}, cache_tokens=96)
    for session in pair:
        found.append(session.prefill(ids, [150, 70], chunk=25))
        poison(pair[0])
        found.append(session.forward(ids[:, :1]))
        assert session.lengths.tolist() == [151, 71]
    np.testing.assert_array_equal(found[0], found[2])
    np.testing.assert_array_equal(found[1], found[3])


@pytest.mark.parametrize(("variant", "model"), [EXACT_H2O, SLERP_H2O, MODELS[2]])
def test_a_batch_gives_the_same_tokens(
    open_pair: Pair, variant: str, model: dict[str, Any]
) -> None:
    """Requests come and go on rows that evict on their own."""
    found: list[list[tuple[int, int]]] = []
    for session in open_pair(variant, model):
        batch = Batch(session, chunk=30)
        found.append([])
        for length in (110, 90):
            batch.add(text(length=length, seed=length)[0].tolist(), 30)
        third = False
        while batch.active:
            found[-1] += [(request, token.token_id) for request, token in batch.step()]
            if not third and len(batch.active) < 2:
                batch.add(text(length=100, seed=3)[0].tolist(), 10)
                third = True
    assert found[0] == found[1]
    assert len(found[0]) == 70


def moved_bytes(session: Session, fake_trt: FakeTensorrt | None) -> list[Any]:
    """Copies of the state since the last time, in the terms of the device."""
    if fake_trt is None:
        return state_copies(session)
    driver = fake_trt.driver
    found = [driver.copied, driver.fetched, list(driver.moved)]
    driver.copied = driver.fetched = 0
    driver.moved.clear()
    return found


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("variant", "model"), MODELS)
def test_onnx_runtime_copies_what_a_choice_needs_and_what_it_moves(
    device_folder: Callable[..., Path], variant: str, model: dict[str, Any]
) -> None:
    """A decode step copies nothing of the state; when a row evicts, other rows stay alone."""
    waits = model["evict"].startswith("snapkv")
    with Session(device_folder(variant, **model), batch_size=2) as session:
        session.prefill(text(2, 100), [100, 40], chunk=20)
        copies = state_copies(session)  # what the end of a prompt attends to begins at zero
        mass = (True, "attention_mass", 1, 4 * session._cache.capacity)
        assert {copy for copy in copies if copy[2] == 1} == ({mass} if waits else set())
        evicted = session._cache.arrays["past_minicache.0.evicted"]
        quiet = noisy = 0
        for at in range(45):
            before = int(evicted[0, -1])
            session.forward(text(2, 1, seed=at))
            copies, went = state_copies(session), int(evicted[0, -1]) - before
            if not went:
                assert copies == []
                quiet += 1
                continue
            noisy += 1
            assert {row for _, _, row, _ in copies} == {0}
            groups = len(session._cache.groups)
            own = {"evicted", "retained_position", "attention_mass", "retained_key"}
            tables = [(up, name, size) for up, name, _, size in copies if name in own]
            table = evicted[0].nbytes
            assert tables.count((True, "evicted", table)) == groups
            assert (False, "evicted", table) not in tables
            # Slots below the first gap, and behind the last token, are nobody's business.
            rest = [(up, size) for up, name, _, size in copies if name not in own]
            down, back = (sum(size for up, size in rest if up is way) for way in (False, True))
            arrays = session._cache.arrays
            names = ("key_code", "value_code", "key_magnitude", "value_magnitude", "key_delta",
                     "value_delta", "key_delta_ratio", "value_delta_ratio")  # fmt: skip
            if variant == "exact":
                names = ("exact_key", "exact_value")
            slot = sum(
                array[0].nbytes // session._cache.capacity
                for past, array in arrays.items()
                if past.split(".")[-1] in names
            )
            assert 0 < back < down <= (62 + 64) * slot
            assert down - back == went * slot
        assert quiet > 40 and (noisy == 0) == waits


@pytest.mark.parametrize(("variant", "model"), MODELS)
def test_tensorrt_moves_slots_on_the_device(
    engine_folder: Callable[..., Path],
    fake_trt: FakeTensorrt,
    variant: str,
    model: dict[str, Any],
) -> None:
    """A decode step copies its inputs and logits; what moves does so within the device."""
    driver, waits = fake_trt.driver, model["evict"].startswith("snapkv")
    with Session(engine_folder(variant, **model), batch_size=2) as session:
        arrays, states = session._cache.arrays, session._model._states  # type: ignore[union-attr]
        session.prefill(text(2, 100), [100, 40], chunk=20)
        evicted = arrays["past_minicache.0.evicted"]
        groups = len(session._cache.groups)
        rows = {past.split(".")[-1]: array[0].nbytes * groups for past, array in arrays.items()}
        control, logits = 2 * (8 + 4 + 4 + 8), 2 * session.manifest.vocab_size * 4
        noisy = 0
        for at in range(45):
            driver.copied = driver.fetched = 0
            driver.moved.clear()
            before = evicted[0, -1]
            held_blocks = len(driver.memory)
            session.forward(text(2, 1, seed=at))
            if before == evicted[0, -1]:
                assert (driver.copied, driver.fetched, driver.moved) == (control, logits, [])
                continue
            noisy += 1
            retained = rows.get("retained_position", 0)
            mass = rows.get("attention_mass", 0)
            assert driver.fetched == logits + mass + retained
            assert driver.copied == control + rows["evicted"] + retained
            assert len(driver.memory) <= held_blocks + 1  # the buffer between
            buffer = session._model._buffers["slots"][0]  # type: ignore[union-attr]
            for target, _ in driver.moved:
                assert target == buffer or any(
                    begin <= target < begin + arrays[past][0].nbytes
                    for past, begin in states.items()
                )
        assert (noisy == 0) == waits
        if model["evict"].startswith("streaming"):
            # One run of slots: into the buffer and back, of each state.
            moving = sum("code" in p or "magnitude" in p or "exact" in p for p in arrays)
            assert len(driver.moved) == 0 or len(driver.moved) == 2 * moving


def test_the_state_stays_where_it_is(open_device: OpenDevice) -> None:
    """Recorded steps, and contexts that are bound once, go on reading the same addresses."""
    session = open_device(*EXACT_H2O)
    session.forward(text(2, 20))
    before = session.state_pointers()
    for at in range(20, 140, 20):
        session.forward(text(2, 160)[:, at : at + 20])
    assert session._cache.arrays["past_minicache.0.evicted"][0, -1] > 0
    assert session.state_pointers() == before
    assert all(one == other for one, other in before.values())


def test_what_going_back_empties_is_empty_on_the_device(open_device: OpenDevice) -> None:
    """All tokens of one row taken back: its table is zero there, and the other row's is not."""
    session = open_device(*EXACT_H2O)
    for at in range(0, 140, 20):
        session.forward(text(2, 160)[:, at : at + 20])
    session.rewind([140, 0])
    poison(session)
    table = session.cache_tensors()["past_minicache.0.evicted"][:, -1]
    assert table[0] == 0 < table[1]


def test_a_cut_prompt_keeps_its_memory_on_a_device(open_pair: Pair) -> None:
    """What an export says of a size is what the device holds: all of it, at any time."""
    session, host = open_pair("exact", {"evict": "snapkv:60"})
    sizes = [cache_size(each.manifest, MAX_LENGTH, 2).resident for each in (session, host)]
    assert session.cache_bytes == sizes[0] == host.cache_bytes
    longer = [cache_size(each.manifest, 10 * MAX_LENGTH).resident for each in (session, host)]
    assert longer[0] > 9 * longer[1]


def test_calls_that_do_not_fit_are_refused_before_anything_is_copied(
    open_device: OpenDevice, target: str, request: pytest.FixtureRequest
) -> None:
    fake = request.getfixturevalue("fake_trt") if target == "tensorrt" else None
    session = open_device("exact", {"evict": "snapkv:60"}, cache_tokens=96)
    session.forward(text(2, 30))
    session.forward(text(2, 30))
    moved_bytes(session, fake)
    with pytest.raises(CapacityError, match="give at most 4 per call"):
        session.forward(text(2, 70))
    assert moved_bytes(session, fake) == ([] if fake is None else [0, 0, []])
    assert session.lengths.tolist() == [60, 60]


@pytest.mark.parametrize("function", ["cuMemcpy2DAsync", "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync"])
def test_tensorrt_names_a_copy_that_failed(
    engine_folder: Callable[..., Path], fake_trt: FakeTensorrt, function: str
) -> None:
    with Session(engine_folder(*EXACT_H2O[:1], **EXACT_H2O[1]), batch_size=2) as session:
        for at in range(0, 120, 20):
            session.forward(text(2, 20, seed=at))
        fake_trt.driver.failing[function] = Status.CUDA_ERROR_ILLEGAL_ADDRESS
        with pytest.raises(SessionError, match=f"cannot copy the cache.*{function}.*reset"):
            session.forward(text(2, 20))
        fake_trt.driver.failing.clear()
        assert session.lengths.tolist() == [120, 120]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("function", ["numpy", "update_inplace"])
def test_onnx_runtime_names_a_copy_that_failed(
    device_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("CUDA failure 700: an illegal memory access was encountered")

    with Session(device_folder(*EXACT_H2O[:1], **EXACT_H2O[1]), batch_size=2) as session:
        for at in range(0, 120, 20):
            session.forward(text(2, 20, seed=at))
        monkeypatch.setattr(DeviceValue, function, fail)
        with pytest.raises(SessionError, match=r"cannot copy the cache.*illegal.*reset\(\)"):
            session.forward(text(2, 20))
        assert session.lengths.tolist() == [120, 120]


def test_prefill_brings_what_engine_and_room_take(
    engine_folder: Callable[..., Path], fake_trt: FakeTensorrt
) -> None:
    """The smaller of both, as both bound a call."""
    folder = engine_folder("exact", tokens=32, evict="snapkv:60")
    for slots, longest in ((144, 32), (112, 20)):
        with Session(folder, cache_tokens=slots) as session:
            assert session.longest_call == longest
            session.prefill(text(1, 150))
