"""Fixtures of the runtime's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from minicache.runtime import open_model
from minicache.runtime.session import Session
from tests.runtime.reference_graph import ReferenceGraph
from tests.runtime.tiny_model import write_tiny_model

OpenTiny = Callable[..., Session]


@pytest.fixture(params=["reference", "library"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs a test with the NumPy reference, and with the op library where it is built."""
    if request.param == "library":
        request.getfixturevalue("ort_library")
    else:
        monkeypatch.setattr(open_model, "open_graph", ReferenceGraph)
    return str(request.param)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes tiny models, each only once: ``tiny_folder("slerp", key_bits=[8, 16])``."""
    written: dict[str, Path] = {}

    def write(variant: str = "exact", **options: Any) -> Path:
        name = repr((variant, sorted(options.items())))
        if name not in written:
            folder = tmp_path_factory.mktemp(variant)
            written[name] = write_tiny_model(folder, variant, **options)
        return written[name]

    return write


@pytest.fixture
def open_tiny(backend: str, tiny_folder: Callable[..., Path]) -> Iterator[OpenTiny]:
    """Opens sessions of tiny models: ``open_tiny("slerp", batch_size=2)``; closes them."""
    sessions: list[Session] = []

    def open_session(
        variant: str = "exact", model: dict[str, Any] | None = None, **options: Any
    ) -> Session:
        folder = tiny_folder(variant, **(model or {}))
        sessions.append(Session(folder, **{"threads": 1, **options}))
        return sessions[-1]

    yield open_session
    for session in sessions:
        session.__exit__(None, None, None)
