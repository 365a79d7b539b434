"""Attention kernels on ``subspace`` codes against the reference, in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.helpers import make_text
from tests.plugins.subspace_text import make_tables, subspace_attributes
from tests.plugins.triton.attend_call import Blocks
from tests.plugins.triton.attend_walk import compare_walk
from tests.plugins.triton.interpreter import TYPES

BASE: dict[str, Any] = {
    "window": 16,
    "sinks": 4,
    "ring_slots": 26,
    "segment_length": 64,
    "head_size": 64,
    "num_heads": 4,
    "kv_num_heads": 2,
    "group_size": 2,
}
MIXED = (8, 16, 4, 16, 2, 32)
# A long and a shorter prompt; one decodes while the other waits; both decode.
CALLS = [((0, 0), (160, 90)), ((160, 90), (1, 0)), ((161, 90), (1, 1))]


def run(
    variant: dict[str, Any],
    *,
    dtype: str = "fp16",
    exact: str = "fp16",
    table_dtype: Any = np.float32,
    rotary: int | None = None,
    calls: Any = CALLS,
    **options: Any,
) -> None:
    attributes = subspace_attributes(**BASE | variant)
    tables = make_tables(attributes, dtype=table_dtype, rotary=rotary, seed=1)
    text = make_text(attributes, 192, batch=2, dtype=TYPES[dtype])
    options = {"skip": 2, "layers": [1], "exact_dtype": TYPES[exact]} | options
    compare_walk(attributes, text, calls, tables=tables, **options)


@pytest.mark.parametrize(
    ("key_bits", "value_bits"),
    [
        ((8, 64), (4, 64)),
        ((4, 40), (2, 64)),
        ((2, 104), (8, 24)),
        (MIXED, (8, 24, 4, 8)),
        ((4, 8, 2, 8), MIXED),
        ((8, 8, 2, 72), (8, 40, 4, 88, 2, 8)),
    ],
)
def test_formats(key_bits: tuple[int, ...], value_bits: tuple[int, ...]) -> None:
    """All widths alone and mixed; planes that are no powers of two; more components than D."""
    run({"key_bits": key_bits, "value_bits": value_bits})


@pytest.mark.parametrize(
    ("dtype", "exact", "size"), [("bf16", "fp16", 128), ("bf16", "bf16", 96), ("fp16", "fp16", 256)]
)
def test_types_and_sizes(dtype: str, exact: str, size: int) -> None:
    """bf16 models with either type of exact slots; head sizes; both layers of the group."""
    bits = {"key_bits": MIXED, "value_bits": MIXED}
    variant = bits | {"head_size": size, "num_heads": 3, "kv_num_heads": 1}
    run(variant, dtype=dtype, exact=exact, table_dtype=np.float16, layers=[0, 1])


@pytest.mark.parametrize(
    ("code_heads", "key_order", "value_order"),
    [
        (1, (), ()),
        (2, (0, 1, 2, 3, 3, 1, 0, 2), (0, 1, 2, 3, 3, 1, 0, 2)),
        (2, (0, 1, 2, 3, 2, 3, 0, 1), (0, 1, 2, 3, 1, 0, 3, 2)),
        (2, (0, 1, 2, 3, 3, 1, 0, 2), (0, 1, 2, 3, 0, 3, 2, 1)),
        (4, (0, 1, 2, 3, 1, 2, 3, 0), (0, 1, 2, 3, 2, 0, 1, 3)),
    ],
)
def test_heads_share_codes(
    code_heads: int, key_order: tuple[int, ...], value_order: tuple[int, ...]
) -> None:
    """Kv heads of one code head go through it together, where keys and values agree on them."""
    variant = {
        "num_heads": 8,
        "kv_num_heads": 4,
        "code_heads": code_heads,
        "key_bits": (8, 16, 4, 48),
        "value_bits": (4, 32, 2, 32),
        "key_head_permutation": key_order,
        "value_head_permutation": value_order,
    }
    run(variant)


@pytest.mark.parametrize(
    ("length", "interleaved", "rotary"), [(16, 0, None), (32, 1, None), (32, 0, 24), (0, 0, None)]
)
def test_segments(length: int, interleaved: int, rotary: int | None) -> None:
    """RoPE in halves or neighbours, of all or some components; many segments, or none."""
    bits = {"key_bits": MIXED, "value_bits": MIXED, "num_heads": 2}
    run(bits | {"segment_length": length, "rotary_interleaved": interleaved}, rotary=rotary)


def test_prompt_in_chunks() -> None:
    """A prompt over codes, several blocks of rows, cut into launches of 11 tokens."""
    variant = {"key_bits": MIXED, "value_bits": MIXED, "num_heads": 3, "kv_num_heads": 1}
    calls = [((0, 0), (64, 130)), ((64, 130), (21, 8))]
    run(variant, calls=calls, skip=1, blocks=Blocks(chunk=11, codes=32, splits=2))


@pytest.mark.parametrize("extras", [{"softcap": 4.0, "has_sink": 1}, {"has_bias": 1}])
def test_extras(extras: dict[str, Any]) -> None:
    run({"key_bits": MIXED, "value_bits": MIXED} | extras)


def test_local_window_over_codes() -> None:
    """A sliding window that ends among the codes, and in the middle of a tile."""
    run({"key_bits": (8, 64), "value_bits": (8, 64), "local_window_size": 70})


def test_full_capacity() -> None:
    """The last token of the cache; then one row is empty again."""
    calls = [((0, 0), (176, 100)), ((176, 100), (15, 0)), ((191, 0), (1, 5))]
    run({"key_bits": (4, 64), "value_bits": (8, 32)}, calls=calls)
