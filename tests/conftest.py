"""Fixtures of the whole suite."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from minicache.plugins import ort_library_path
from minicache.runtime.errors import MissingDependencyError

# The same examples on every machine: a red run can be repeated.
settings.register_profile("suite", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("suite")


@pytest.fixture(scope="session")
def ort_library() -> Path:
    """Path of the ONNX Runtime library; skips where it was not built."""
    try:
        return ort_library_path()
    except MissingDependencyError as error:
        pytest.skip(f"the ONNX Runtime library is not built: {error}")
