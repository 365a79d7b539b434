"""Kernel and reference side by side on a ``subspace`` group: what its two test files share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.helpers import poisoned_state
from tests.plugins.comparison import Comparison
from tests.plugins.ort_group import OrtGroup
from tests.plugins.ragged_text import CAPACITY, SLOTS
from tests.plugins.subspace_text import make_tables, subspace_attributes

MIXED, FOUR_BITS, TWO_BITS = (8, 16, 4, 16, 2, 32), (4, 64), (2, 64)
BASE: dict[str, Any] = {
    **SLOTS,
    "segment_length": 32,
    "group_size": 2,
    "key_bits": MIXED,
    "value_bits": MIXED,
}


def make_comparison(
    library: Path,
    variant: dict[str, Any],
    *,
    batch: int = 2,
    capacity: int = CAPACITY,
    dtype: Any = np.float32,
    exact_dtype: Any = np.float16,
    threads: int = 2,
    table_dtype: Any = np.float32,
    rotary: int | None = None,
    in_place: bool = True,
    maths: str = "fp32",
) -> Comparison:
    """Kernel and reference on an empty, poisoned state and the same tables."""
    attributes = subspace_attributes(**BASE | variant)
    tables = make_tables(attributes, dtype=table_dtype, rotary=rotary, seed=1)
    state = poisoned_state(attributes, batch, capacity, 0, exact_dtype)
    kernel = OrtGroup(library, attributes, state, dtype, threads, in_place, tables, maths)
    return Comparison(kernel)
