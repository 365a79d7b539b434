"""Attention kernels on ``slerp`` codes against the reference, in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.helpers import make_attributes, make_text
from tests.plugins.aligned_text import aligned_attributes, make_alignment
from tests.plugins.triton.attend_walk import compare_walk
from tests.plugins.triton.interpreter import TYPES

BASE: dict[str, Any] = {
    "mode": "slerp",
    "window": 16,
    "sinks": 4,
    "ring_slots": 26,
    "head_size": 64,
    "num_heads": 4,
    "kv_num_heads": 2,
}
CALLS = [((0, 0), (160, 90)), ((160, 90), (1, 0)), ((161, 90), (1, 1))]
ORDERS = {"key_head_permutation": (1, 0, 0, 1), "value_head_permutation": (0, 1, 1, 0)}


@pytest.mark.parametrize(
    ("key_bits", "value_bits", "size", "dtype"),
    [(16, 8, 64, "fp16"), (8, 16, 96, "bf16"), (4, 4, 128, "fp16"), (8, 4, 256, "fp16")],
)
def test_widths(key_bits: int, value_bits: int, size: int, dtype: str) -> None:
    """Directions of 16, 8 and 4 bits, each layer with its own magnitudes and order of heads."""
    bits = {"key_bits": key_bits, "value_bits": value_bits, "head_size": size}
    attributes = make_attributes(**BASE | bits | ORDERS)
    text = make_text(attributes, 192, batch=2, dtype=TYPES[dtype])
    compare_walk(attributes, text, CALLS, skip=2, exact_dtype=TYPES[dtype])


@pytest.mark.parametrize(
    "policy",
    [
        {"retention": "threshold", "retention_threshold": 0.7},
        {"retention": "minmax", "retention_gamma": 0.3, "magnitude": "blended"},
    ],
)
def test_retained_tokens(policy: dict[str, Any]) -> None:
    """Marked codes are passed over, and their tokens come from the side buffer."""
    attributes = make_attributes(**BASE | policy)
    text = make_text(attributes, 192, batch=2, dtype=np.float16)
    compare_walk(attributes, text, CALLS, retained=20, skip=2)


def test_budget_after_going_back() -> None:
    """Tokens that are active again after going back are skipped by the list, as no sign marks them.

    What is dropped has the least similar layers, and so has thrown others out of the active ones.
    """
    attributes = make_attributes(**BASE | {"retention": "budget", "num_heads": 2})
    text = make_text(attributes, 192, batch=2, dtype=np.float16)
    rng = np.random.default_rng(5)
    for array in (text.key, text.value):
        array[:, :, 130:] = rng.standard_normal(array[:, :, 130:].shape)
    back = [((0, 0), (150, 120)), ((150, 120), (6, 1)), ((148, 113), (1, 1)), ((149, 114), (2, 0))]
    compare_walk(attributes, text, back, retained=6, skip=2)


@pytest.mark.parametrize(
    "variant",
    [
        {"key_bits": 4, "segment_length": 32, **ORDERS},
        {"value_bits": 16, "retention": "budget", "rotary_interleaved": 1, "segment_length": 48},
    ],
)
def test_aligned(variant: dict[str, Any]) -> None:
    """Codes in a common basis, keys in the frame of their segment."""
    attributes = aligned_attributes(**BASE | variant)
    tables = make_alignment(attributes, dtype=np.float16)
    text = make_text(attributes, 192, batch=2, dtype=np.float16)
    compare_walk(attributes, text, CALLS, tables=tables, retained=5, skip=2)
