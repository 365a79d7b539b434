"""Fixtures of the samples' tests: the serving sample's modules, its engine, its application."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.tiny_model import write_tiny_model
from tests.samples.serving import TEMPLATE, Gate, Start, gated, sample_modules


@pytest.fixture(scope="package")
def serving() -> Iterator[Any]:
    """The modules of samples/03_serve_ray by name; skips where its light packages are missing."""
    for name in ("fastapi", "prometheus_client"):
        pytest.importorskip(name, reason=f"the serving sample needs {name}")
    with sample_modules() as modules:
        yield modules


@pytest.fixture(scope="package")
def folder(ort_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that retains tokens, with a chat template."""
    made = write_tiny_model(tmp_path_factory.mktemp("serve"), "slerp")
    (made / "chat_template.jinja").write_text(TEMPLATE)
    return made


@pytest.fixture
def start(serving: Any, folder: Path) -> Iterator[Start]:
    """Starts engines of the tiny model whose steps a gate holds up; closes them."""
    engines: list[tuple[Any, Gate]] = []

    def begin(**options: Any) -> tuple[Any, Gate]:
        sizes = serving.sizes.EngineOptions(**{"threads": 1, "rows": 2, **options})
        engine, gate = serving.engine.Engine(folder, sizes), Gate()
        engine._batch.step = gated(gate, engine._batch.step)
        engines.append((engine, gate))
        return engines[-1]

    yield begin
    for engine, gate in engines:
        gate.open()
        engine.close()


@pytest.fixture
def served(serving: Any, folder: Path) -> Iterator[Any]:
    """An engine with its gate, its application and a client."""
    pytest.importorskip("httpx2", reason="FastAPI's test client needs httpx2")
    testclient = importlib.import_module("fastapi.testclient")
    options = serving.sizes.EngineOptions(rows=2, waiting=3, threads=1, chunk=16)
    engine, gate = serving.engine.Engine(folder, options, "tiny"), Gate()
    engine._batch.step = gated(gate, engine._batch.step)
    engine.gate = gate
    engine.app = serving.app.build_app(lambda: engine, lambda: {"replica": "one"})
    engine.client = testclient.TestClient(engine.app)
    yield engine
    gate.open()
    engine.close()
