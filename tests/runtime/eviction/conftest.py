"""Pairs of sessions: one on a faked device, one on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from minicache.runtime import open_model, ort
from minicache.runtime.session import Session
from tests.runtime.eviction.device_walk import Pair
from tests.runtime.reference_graph import ReferenceGraph


@pytest.fixture(params=["ort-cuda", "tensorrt"])
def target(request: pytest.FixtureRequest) -> str:
    """A target whose state lies on a device; its libraries are faked."""
    request.getfixturevalue("device" if request.param == "ort-cuda" else "fake_trt")
    return str(request.param)


@pytest.fixture
def open_device(target: str, request: pytest.FixtureRequest) -> Iterator[Callable[..., Session]]:
    """Opens a session of a tiny model on the device, by default of two rows; closes it."""
    write = request.getfixturevalue("device_folder" if target == "ort-cuda" else "engine_folder")
    sessions: list[Session] = []

    def open_session(variant: str, model: dict[str, Any], **options: Any) -> Session:
        sessions.append(Session(write(variant, **model), **{"batch_size": 2, **options}))
        return sessions[-1]

    yield open_session
    for session in sessions:
        session.__exit__(None, None, None)


@pytest.fixture
def open_pair(
    open_device: Callable[..., Session],
    tiny_folder: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Pair]:
    """Opens a session of a tiny model on the device, and the same one on the host."""
    sessions: list[Session] = []

    def open_both(variant: str, model: dict[str, Any], **options: Any) -> tuple[Session, Session]:
        given = {"batch_size": 2, **options}
        session = open_device(variant, model, **given)
        with monkeypatch.context() as host:
            host.setattr(open_model, "open_graph", ReferenceGraph)
            host.setattr(ort, "load_onnxruntime", lambda: onnxruntime)
            sessions.append(Session(tiny_folder(variant, **model), **given))
        return session, sessions[-1]

    yield open_both
    for session in sessions:
        session.__exit__(None, None, None)
