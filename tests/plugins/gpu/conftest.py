"""Fixtures of the GPU tests; none of them needs a GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.once import make_once
from tests.plugins.gpu.fake_driver import build_tools


@pytest.fixture(scope="session")
def launcher_tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the launcher's test program and of a fake CUDA driver."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    return make_once(tmp_path_factory, worker, "launcher", build_tools)
