"""Sessions on TensorRT engines, where TensorRT and the GPU are faked."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from minicache.runtime import open_model
from minicache.runtime.session import Session
from tests.runtime.fake_tensorrt import ACTIVATIONS, FakeTensorrt
from tests.runtime.reference_graph import ReferenceGraph
from tests.runtime.session_text import drive_batch

FOLDER = Callable[..., Path]


def walk(session: Session) -> list[np.ndarray]:
    """Ragged prefill, decode steps, going back, a reset, twice: logits and state to look at."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(2):
        found.append(session.forward(rng.integers(0, 256, (2, 30)), [30, 17]))
        for _ in range(3):
            found.append(session.forward(rng.integers(0, 256, (2, 1)), logits="last"))
        session.rewind([2, 1])
        found.append(session.forward(rng.integers(0, 256, (2, 1)), [1, 0]))
        found.append(session.forward(rng.integers(0, 256, (2, 4)), logits=None))
        found.append(session.prefill(rng.integers(0, 256, (2, 40)), [40, 33]))
        found += [x.copy() for x in session.cache_tensors().values() if x.dtype == np.int32]
        found.append(np.array([stats.n_retained for stats in session.retention_stats()]))
        session.reset()
    return found


@pytest.mark.parametrize("variant", ["slerp", "exact"])
@pytest.mark.parametrize("logits_type", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_a_session_equals_one_on_onnx_runtime(
    variant: str,
    logits_type: int,
    engine_folder: FOLDER,
    tiny_folder: FOLDER,
    fake_trt: FakeTensorrt,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Session(engine_folder(variant, logits_type=logits_type), batch_size=2) as session:
        actual = walk(session)
    monkeypatch.setattr(open_model, "open_graph", ReferenceGraph)
    # Prefill in chunks of what the engine takes: tokens of one call see each other exactly.
    monkeypatch.setattr(Session.prefill, "__kwdefaults__", {"chunk": 32, "progress": None})
    with Session(tiny_folder(variant, logits_type=logits_type), batch_size=2) as session:
        expected = walk(session)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_generation_gives_the_same_tokens(
    engine_folder: FOLDER,
    tiny_folder: FOLDER,
    fake_trt: FakeTensorrt,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Session(engine_folder(tokens=64)) as session:
        actual = [token.token_id for token in session.generate("Once upon a time, there was", 12)]
    monkeypatch.setattr(open_model, "open_graph", ReferenceGraph)
    with Session(tiny_folder("slerp")) as session:
        expected = [token.token_id for token in session.generate("Once upon a time, there was", 12)]
    assert len(actual) == 12 and actual == expected


def test_a_decode_step_is_one_call_of_tensorrt(
    engine_folder: FOLDER, fake_trt: FakeTensorrt
) -> None:
    with Session(engine_folder(), batch_size=2) as session:
        states = len(session.manifest.state)
        session.prefill(np.ones((2, 50), np.int64))
        for _ in range(4):
            session.forward(np.ones((2, 1), np.int64), logits="last")
        session.prefill(np.ones((2, 18), np.int64))
        session.forward(np.ones((2, 1), np.int64), logits="last")
    decode, prefill = fake_trt.contexts
    assert (decode.profile, prefill.profile) == (0, 1)
    # Once: shapes of states and 4 control inputs, addresses of both ends of states, and of logits.
    once = ["set_input_shape"] * (states + 4) + ["set_tensor_address"] * (2 * states + 5)
    assert sorted(decode.told) == ["execute_async_v3"] * 5 + once
    # Chunks of 32, 18 and 18 tokens: one change of shape, and no address.
    assert sorted(prefill.told) == ["execute_async_v3"] * 3 + sorted([*once, "set_input_shape"])


def test_what_lies_on_the_device_is_counted(engine_folder: FOLDER, fake_trt: FakeTensorrt) -> None:
    driver = fake_trt.driver
    with Session(engine_folder(), batch_size=2) as session:
        states = {past: array.nbytes for past, array in session.cache_tensors().items()}
        assert sorted(block.nbytes for block in driver.memory.values()) == sorted(
            [*states.values(), ACTIVATIONS]
        )
        session.forward(np.ones((2, 20), np.int64))
        session.forward(np.ones((2, 9), np.int64))  # fits into what is there
        control = {"input_ids": 2 * 20 * 8, "lengths": 2 * 4, "positions": 2 * 20 * 8}
        logits = 2 * 20 * session.manifest.vocab_size * 4
        assert sorted(block.nbytes for block in driver.memory.values()) == sorted(
            [*states.values(), ACTIVATIONS, *control.values(), control["lengths"], logits]
        )
        session.forward(np.ones((2, 21), np.int64))  # does not: the old buffers are given back
        assert len(driver.memory) == len(states) + 6
        assert all(one == other for one, other in session.state_pointers().values())
        assert len({one for one, _ in session.state_pointers().values()}) == len(states)


def test_the_state_is_not_copied_between_calls(
    engine_folder: FOLDER, fake_trt: FakeTensorrt
) -> None:
    driver = fake_trt.driver
    with Session(engine_folder(), batch_size=2) as session:
        free = 0
        for past, array in session.cache_tensors().items():
            free += array.nbytes if past.endswith("retained_position") else 0
        assert driver.copied == free > 0  # what marks free slots
        session.forward(np.ones((2, 1), np.int64))
        assert driver.copied == free + 2 * (8 + 4 + 4 + 8)
        session.reset()
        assert driver.copied == 2 * free + 2 * (8 + 4 + 4 + 8)


def test_contexts_share_their_activations(engine_folder: FOLDER, fake_trt: FakeTensorrt) -> None:
    with Session(engine_folder()) as session:
        session.forward([[1, 2, 3]])
        session.forward([[4]])
        one, other = fake_trt.contexts
        assert one.memory == other.memory != 0


def test_a_closed_session_leaves_nothing_behind(
    engine_folder: FOLDER, fake_trt: FakeTensorrt
) -> None:
    driver, folder = fake_trt.driver, engine_folder()
    with Session(folder) as session:
        session.forward([[1, 2, 3]])
    assert (driver.memory, driver.streams, driver.contexts) == ({}, {}, 0)
    forgotten: Any = Session(folder)
    forgotten.forward([[1, 2, 3]])
    assert driver.memory
    del forgotten
    fake_trt.contexts.clear()
    gc.collect()
    assert (driver.memory, driver.streams, driver.contexts) == ({}, {}, 0)


def test_sessions_of_one_process_share_the_plugin(
    engine_folder: FOLDER, fake_trt: FakeTensorrt
) -> None:
    folder = engine_folder()
    with Session(folder) as one, Session(folder) as other:
        np.testing.assert_array_equal(one.forward([[1, 2, 3]]), other.forward([[1, 2, 3]]))
    assert len(fake_trt.libraries) == 1


def test_a_cache_may_be_smaller_than_the_engine_was_built_for(
    engine_folder: FOLDER, fake_trt: FakeTensorrt
) -> None:
    with Session(engine_folder(), max_sequence_length=40) as session:
        assert session.capacity == 48
        session.prefill(np.ones(48, np.int64))
    assert fake_trt.contexts[1].shapes["past_minicache.0.key_code"][2] == 48


@pytest.mark.parametrize("variant", ["slerp", "exact"])
def test_a_batch_equals_one_on_onnx_runtime(
    variant: str,
    engine_folder: FOLDER,
    tiny_folder: FOLDER,
    fake_trt: FakeTensorrt,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """On rows of their own where these begin at addresses that TensorRT takes, else on all rows."""
    with Session(engine_folder(variant, batch=3), batch_size=3) as session:
        model: Any = session._model
        assert model.needs_all_rows(1) == (variant == "slerp")
        actual = drive_batch(session, tmp_path, 32, (1, 40, 17))
    monkeypatch.setattr(open_model, "open_graph", ReferenceGraph)
    with Session(tiny_folder(variant), batch_size=3) as session:
        assert drive_batch(session, tmp_path, 32, (1, 40, 17)) == actual
