"""Many new tokens in a call: their register tiles, passes and tasks give what the reference gives.

Tiles end where rows, head sizes and blocks of 64 tokens do not, and are left out where none of
their rows sees a token: shapes are drawn so that every border falls everywhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import make_attributes, make_text, poisoned_state
from tests.plugins.comparison import Comparison
from tests.plugins.ort_group import OrtGroup

CAPACITY = 320
LENGTHS = st.lists(st.integers(0, 90), min_size=2, max_size=2)
CALLS = st.lists(LENGTHS, min_size=1, max_size=3)
DTYPES = st.sampled_from([np.float32, np.float16])
SHAPES = st.fixed_dictionaries(
    {
        "head_size": st.sampled_from([16, 24, 40, 64, 80]),
        "num_heads": st.sampled_from([2, 4, 6, 10, 14]),
        "kv_num_heads": st.sampled_from([1, 2]),
    }
)
SCORES = st.fixed_dictionaries(
    {
        "softcap": st.sampled_from([0.0, 5.0]),
        "has_bias": st.integers(0, 1),
        "has_sink": st.integers(0, 1),
    }
)
SLIDING = st.sampled_from([0, 0, 1, 7, 33, 64, 100])
CODES = st.fixed_dictionaries(
    {
        "key_bits": st.sampled_from([16, 8, 4]),
        "value_bits": st.sampled_from([16, 8, 4]),
        "code_layout": st.sampled_from(["tile", "row"]),
        "retention": st.sampled_from(["none", "threshold"]),
        "sinks": st.integers(0, 5),
        "window": st.integers(0, 40),
    }
)


def compare(library: Path, attributes: dict[str, Any], calls: list[list[int]], dtype: Any) -> None:
    """Runs the calls on kernel and reference, from a cache whose memory is poisoned."""
    exact = dtype if attributes["mode"] == "exact" else np.float16
    batch = len(calls[0])
    state = poisoned_state(attributes, batch, CAPACITY, 9, exact)
    comparison = Comparison(OrtGroup(library, attributes, state, dtype, threads=1))
    tokens = int(np.sum(calls, axis=0).max())
    text = make_text(attributes, max(tokens, 1), batch=batch, dtype=dtype, seed=tokens)
    past = np.zeros(batch, int)
    for new in calls:
        if not max(new):
            continue
        comparison.step(text.call(list(past), new, capacity=CAPACITY))
        past += new
    comparison.finish()


@settings(max_examples=40, deadline=None)
@given(shape=SHAPES, scores=SCORES, sliding=SLIDING, calls=CALLS, dtype=DTYPES)
def test_exact_tokens(
    ort_library: Path,
    shape: dict[str, Any],
    scores: dict[str, Any],
    sliding: int,
    calls: list[list[int]],
    dtype: Any,
) -> None:
    """Any number of rows, cached and new tokens, with a sliding window of any size or none."""
    window = {"local_window_size": sliding, "ring_slots": sliding + 30} if sliding else {}
    compare(ort_library, make_attributes(**shape, **scores, **window), calls, dtype)


@settings(max_examples=30, deadline=None)
@given(shape=SHAPES, codes=CODES, calls=CALLS, dtype=DTYPES)
def test_coded_tokens(
    ort_library: Path,
    shape: dict[str, Any],
    codes: dict[str, Any],
    calls: list[list[int]],
    dtype: Any,
) -> None:
    """Codes, retained tokens, sinks, the ring and new tokens, each with borders of its own."""
    ring = {"ring_slots": codes["window"] + 26, "retention_threshold": 0.6}
    compare(ort_library, make_attributes(mode="slerp", **shape, **codes, **ring), calls, dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["fp32", "fp16"])
def test_the_largest_tasks(ort_library: Path, dtype: Any) -> None:
    """A prompt that is cut into tasks of as many rows as there may be, and their passes."""
    attributes = make_attributes(num_heads=64, kv_num_heads=2, head_size=16)
    compare(ort_library, attributes, [[3], [290]], dtype)
