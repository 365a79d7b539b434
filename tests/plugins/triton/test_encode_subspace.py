"""The writer's kernels on ``subspace`` codes against the reference, in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.helpers import make_text
from tests.plugins.subspace_text import make_tables, subspace_attributes
from tests.plugins.triton.encode_walk import EncodeWalk
from tests.plugins.triton.interpreter import TYPES

SMALL: dict[str, Any] = {"window": 5, "sinks": 3, "ring_slots": 9, "segment_length": 8}
CALLS = [((0, 0), (23, 2)), ((23, 2), (0, 12)), ((23, 14), (1, 1))]  # as of slerp; S = 1 at last
THREE = {"num_heads": 6, "kv_num_heads": 3}
FOUR = {"num_heads": 4, "kv_num_heads": 4}
VARIANTS: list[tuple[dict[str, Any], str, str, int | None]] = [
    ({"key_bits": (8, 8, 4, 8, 2, 8), "value_bits": (2, 40)}, "fp16", "fp16", None),
    ({"key_bits": (4, 24), "value_bits": (8, 24, 2, 8), "group_size": 3}, "bf16", "fp32", 6),
    ({"key_bits": (8, 40), "value_bits": (8, 8, 4, 8), "rotary_interleaved": 1, **THREE,
      "code_heads": 1, "head_size": 20}, "fp16", "fp32", 14),
    ({"key_bits": (4, 8, 2, 40), "value_bits": (4, 72), **FOUR, "code_heads": 2, "group_size": 2,
      "key_head_permutation": (3, 1, 0, 2, 1, 2, 3, 0),
      "value_head_permutation": (0, 2, 1, 3, 3, 2, 1, 0)}, "fp16", "fp16", None),
    ({**THREE, "code_heads": 3, "segment_length": 0, "sinks": 0, "window": 0}, "bf16", "fp16",
     None),
    ({"group_size": 9, "segment_length": 1, "value_bits": (8, 16)}, "fp16", "fp16", None),
]  # fmt: skip


@pytest.mark.parametrize(("variant", "dtype", "table", "rotary"), VARIANTS, ids=str)
def test_codes(variant: dict[str, Any], dtype: str, table: str, rotary: int | None) -> None:
    """Mixed widths, code heads, permutations and segments, over ragged calls and single tokens."""
    attributes = subspace_attributes(**SMALL | variant)
    dtypes = {"fp16": np.float16, "fp32": np.float32}
    tables = make_tables(attributes, dtype=dtypes[table], rotary=rotary)
    walk = EncodeWalk(attributes, tables=tables, exact_dtype=TYPES[dtype])
    text = make_text(attributes, 32, batch=2, dtype=TYPES[dtype])
    for past, new in CALLS:
        walk.step(text.call(past, new))
    walk.finish()


def test_vectors_without_a_code() -> None:
    """Zero and infinite joint vectors have length 0 and the middle level; long ones saturate."""
    attributes = subspace_attributes(**SMALL)
    tables = make_tables(attributes)
    text = make_text(attributes, 32, dtype=TYPES["bf16"])
    for array in (text.key, text.value):
        array[:, :, 4] = 0
        array[0, :, 5, 0, 1] = np.inf
        array[0, :, 6, 0, 2] = np.nan
        array[:, :, 7] = 1e30
        array[:, :, 8] = 3e38
        array[:, :, 9] *= array.dtype.type(2.0**-100)
    walk = EncodeWalk(attributes, tables=tables, batch=1, exact_dtype=TYPES["bf16"])
    walk.step(text.call([0], [20]))
    walk.step(text.call([20], [1]))
    walk.finish()
    stored = walk.state["key_magnitude"][0, 0, 4:8, 0]
    assert stored.tolist() == [0, 0, 0, 65504]
