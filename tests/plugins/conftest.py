"""Fixtures of the kernel tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import poisoned_state
from tests.plugins.ort_group import OrtGroup
from tests.plugins.subspace_text import make_tables, subspace_attributes


@pytest.fixture(scope="session")
def subspace_library(ort_library: Path) -> Path:
    """The ONNX Runtime library, where it computes mode ``subspace``; skips where it says it cannot.

    Any other failure of a small session is raised.
    """
    attributes = subspace_attributes(head_size=64)
    state = poisoned_state(attributes, 1, 16)
    try:
        OrtGroup(ort_library, attributes, state, tables=make_tables(attributes))
    except Exception as error:
        if "subspace" in str(error) and "not in this version" in str(error):
            pytest.skip(f"the ONNX Runtime library refuses mode subspace: {error}")
        raise
    return ort_library
