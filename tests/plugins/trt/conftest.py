"""Fixtures of the TensorRT plugin's tests; none of them needs a GPU or TensorRT."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from minicache.plugins import tensorrt_library_path
from minicache.runtime.errors import MissingDependencyError
from tests.once import make_once
from tests.plugins.trt.plugin_process import build_plugin_tools


@pytest.fixture(scope="session")
def trt_library() -> Path:
    """The plugin library; skips where it was not built."""
    try:
        return tensorrt_library_path()
    except MissingDependencyError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def plugin_tools(trt_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the plugin's test program and of a fake CUDA driver."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    return make_once(tmp_path_factory, worker, "plugin", build_plugin_tools)
