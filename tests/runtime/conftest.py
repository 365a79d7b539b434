"""Fixtures of the runtime's tests."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from minicache.plugins import library
from minicache.runtime import device_binding, open_model, ort, tensorrt_engine
from minicache.runtime.engine_profile import engine_profiles
from minicache.runtime.manifest import KERNELS_NAME, Manifest
from minicache.runtime.session import Session
from tests.runtime.fake_cuda import FakeDriver
from tests.runtime.fake_device import COPIES, DeviceGraph, fake_onnxruntime
from tests.runtime.fake_tensorrt import FakeTensorrt, write_engine
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


@pytest.fixture
def device_folder(tiny_folder: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """Writes folders for ort-cuda, with a file in place of kernels: ``device_folder("slerp")``."""

    def write(variant: str = "slerp", **options: Any) -> Path:
        folder = Path(shutil.copytree(tiny_folder(variant, **options), tmp_path / "cuda"))
        dataclasses.replace(Manifest.load(folder), target="ort-cuda").save(folder)
        (folder / KERNELS_NAME).mkdir()
        (folder / KERNELS_NAME / "kernels.bin").write_bytes(b"none")
        return folder

    return write


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime with CUDA, faked."""
    for module in (ort, device_binding):
        monkeypatch.setattr(module, "load_onnxruntime", fake_onnxruntime)
    monkeypatch.setattr(open_model, "open_graph", DeviceGraph)
    COPIES.clear()


@pytest.fixture
def engine_folder(tiny_folder: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """Writes folders with a fake engine: ``engine_folder("slerp", batch=2, tokens=32)``."""

    def write(variant: str = "slerp", *, batch: int = 2, tokens: int = 32, **options: Any) -> Path:
        folder = Path(shutil.copytree(tiny_folder(variant, **options), tmp_path / "engine"))
        dataclasses.replace(Manifest.load(folder), target="tensorrt").save(folder)
        (folder / KERNELS_NAME).mkdir()
        (folder / KERNELS_NAME / "kernels.bin").write_bytes(b"none")
        write_engine(folder, engine_profiles(Manifest.load(folder), batch, tokens))
        return folder

    return write


@pytest.fixture
def fake_trt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeTensorrt]:
    """TensorRT and a GPU of compute capability 8.7, faked."""
    driver = FakeDriver()
    module = FakeTensorrt(driver)
    monkeypatch.setitem(sys.modules, "tensorrt", module)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", driver)  # type: ignore[arg-type]
    plugin = tmp_path / library.TENSORRT_LIBRARY
    monkeypatch.setattr(library, "tensorrt_library_path", lambda: plugin)
    tensorrt_engine._log.cache_clear()  # it is made from the module
    yield module
    tensorrt_engine._log.cache_clear()
