"""Fixtures of the whole suite."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

from minicache.plugins import ort_library_path
from minicache.runtime.errors import MissingDependencyError

# Before NumPy is imported: the suite's matrices are small, and BLAS threads that wait for each
# other on cores that other workers use take ten times as long as one.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Tests of graphs and of the runtime compare with numbers that fp32 maths keeps to; what integers
# add is the matter of tests/plugins/test_ort_maths.py.
os.environ.setdefault("MINICACHE_CPU_MATH", "fp32")

# Before any test module imports Triton: it reads this once, for its own functions as for ours.
os.environ["TRITON_INTERPRET"] = "1"

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
