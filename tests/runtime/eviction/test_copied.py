"""What sessions on devices copy when rows evict, and what they say when a copy fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minicache.runtime.errors import CapacityError, SessionError
from minicache.runtime.eviction.compact import slot_states
from minicache.runtime.session import Session
from tests.runtime.eviction.device_walk import EXACT_H2O, MODELS, OpenDevice
from tests.runtime.fake_cuda import Status
from tests.runtime.fake_device import DeviceValue, state_copies
from tests.runtime.fake_tensorrt import FakeTensorrt
from tests.runtime.session_text import text


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
            if model["evict"].startswith("streaming"):
                # One run of slots: into the buffer and back, of each state.
                numbers = session._cache.groups
                states_moved = sum(len(slot_states(session._cache.group(g))) for g in numbers)
                assert len(driver.moved) == 2 * states_moved
        assert (noisy == 0) == waits


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
