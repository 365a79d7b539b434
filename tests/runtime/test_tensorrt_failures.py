"""What a TensorRT session says where it does not suffice, or something fails while it runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from minicache.runtime.engine_profile import engine_profiles
from minicache.runtime.errors import SessionError
from minicache.runtime.manifest import Manifest
from minicache.runtime.session import Session
from tests.runtime.fake_cuda import Status
from tests.runtime.fake_tensorrt import FakeTensorrt, write_engine

FOLDER = Callable[..., Path]


@pytest.mark.parametrize("part", ["state", "activations", "call"])
def test_memory_that_does_not_suffice_is_a_sentence(
    part: str, engine_folder: FOLDER, fake_trt: FakeTensorrt
) -> None:
    driver, folder = fake_trt.driver, engine_folder()
    with Session(folder) as session:
        needed = sum(block.nbytes for block in driver.memory.values())
        states = session.cache_bytes
    driver.room = {"state": states - 1, "activations": needed - 1, "call": needed}[part]
    message = r"do not fit into GPU memory \(cuMemAlloc: .*OUT_OF"
    if part == "state":  # known before anything is allocated
        message = r"does not fit into GPU memory: it needs .* MB are available; give max_sequence"
    with pytest.raises(SessionError, match=message):
        Session(folder).forward([[1]])


def test_a_run_that_is_refused_does_not_advance(
    engine_folder: FOLDER, fake_trt: FakeTensorrt
) -> None:
    with Session(engine_folder()) as session:
        session.forward([[1, 2, 3]])
        fake_trt.refusing["execute_async_v3"] = "enqueue failed"
        with pytest.raises(SessionError, match=r"TensorRT failed in this call \(enqueue failed\)"):
            session.forward([[1]])
        assert session.lengths.tolist() == [3]
        assert not any(fake_trt.driver.streams.values())  # nothing copies from freed arrays
        fake_trt.refusing.clear()
        session.reset()
        session.forward([[1]])


def test_a_kernel_that_fails_later_is_this_calls_failure(
    engine_folder: FOLDER, fake_trt: FakeTensorrt
) -> None:
    with Session(engine_folder()) as session:
        fake_trt.driver.failing["cuStreamSynchronize"] = Status.CUDA_ERROR_ILLEGAL_ADDRESS
        with pytest.raises(SessionError, match=r"TensorRT failed in .*ILLEGAL_ADDRESS\); the"):
            session.forward([[1]])
    assert not fake_trt.driver.contexts  # closing does what can be done


def test_calls_that_are_longer_than_the_engine_takes(
    engine_folder: FOLDER, fake_trt: FakeTensorrt
) -> None:
    with Session(engine_folder(tokens=32)) as session:
        with pytest.raises(SessionError, match=r"33 new tokens .* up to 32 .*--chunk 33"):
            session.forward(np.ones((1, 33), np.int64))
        assert session.lengths.tolist() == [0] and session.longest_call == 32
        session.prefill(np.ones(80, np.int64), chunk=64)


def test_more_rows_or_tokens_than_the_engine_takes(
    engine_folder: FOLDER, fake_trt: FakeTensorrt
) -> None:
    folder = engine_folder(batch=2)
    with pytest.raises(SessionError, match=r"up to 2; .* build-engine .* --max-batch-size 3"):
        Session(folder, batch_size=3)
    own = engine_profiles(Manifest.load(folder))
    small = [dataclasses.replace(profile, capacity=64) for profile in own]
    write_engine(folder, own, profiles=small)
    with pytest.raises(SessionError, match=r"hold 160 tokens, the engine was built for up to 64"):
        Session(folder)


def test_execution_providers_are_onnx_runtimes(
    engine_folder: FOLDER, fake_trt: FakeTensorrt
) -> None:
    with pytest.raises(SessionError, match=r"was exported for TensorRT, which has none"):
        Session(engine_folder(), providers=["CPUExecutionProvider"])
