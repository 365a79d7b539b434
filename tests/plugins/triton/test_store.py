"""``store`` in exact mode, and every kernel where the lengths do not fit the call or the cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.helpers import make_attributes, make_text, poisoned_state
from tests.plugins.subspace_text import make_tables, subspace_attributes
from tests.plugins.triton.encode_walk import EncodeWalk, same_bits
from tests.plugins.triton.interpreter import TYPES
from tests.plugins.triton.writer import Writer


@pytest.mark.parametrize(
    ("variant", "dtype"),
    [
        ({}, "fp16"),
        ({"kv_num_heads": 2, "head_size": 20}, "bf16"),
        ({"local_window_size": 7, "ring_slots": 10}, "fp16"),
        ({"local_window_size": 7, "ring_slots": 7, "head_size": 24}, "bf16"),
    ],
    ids=str,
)
def test_exact_mode(variant: dict[str, Any], dtype: str) -> None:
    """Every new token is stored, or the last ones of a sliding window, in ragged rows."""
    attributes = make_attributes(**variant)
    walk = EncodeWalk(attributes, exact_dtype=TYPES[dtype])
    text = make_text(attributes, 48, batch=2, dtype=TYPES[dtype])
    for past, new in (
        ((0, 0), (23, 2)),
        ((23, 2), (0, 19)),
        ((23, 21), (1, 1)),
        ((20, 22), (6, 2)),
    ):
        walk.step(text.call(past, new))


@pytest.mark.parametrize("mode", ["exact", "sliding", "slerp", "subspace"])
def test_impossible_lengths_write_nowhere_else(mode: str) -> None:
    """Lengths beyond the capacity, below zero or beyond the call leave other memory alone.

    ``Buffer`` guards the memory around each tensor; here also the other batch row is compared.
    """
    tables: list[dict[str, np.ndarray]] = []
    small = {"window": 4, "sinks": 2, "ring_slots": 9}
    if mode == "subspace":
        attributes = subspace_attributes(**small, segment_length=8)
        tables = make_tables(attributes)
    elif mode == "slerp":
        attributes = make_attributes(**small, mode="slerp", retention="budget")
    else:
        attributes = make_attributes(**({"local_window_size": 5, "ring_slots": 8}
                                        if mode == "sliding" else {}))  # fmt: skip
    text = make_text(attributes, 96, batch=2, dtype=np.float16)
    state = poisoned_state(attributes, 2, 16, 3)
    writer = Writer(attributes, state, tables)
    for past, total in ((14, 30), (-5, 3), (8, 40), (12, 4), (90, 91), (0, 2**30)):
        call = text.call([0, 0], [6, 6])
        call.past[0], call.total[0] = past, total
        call.past[1] = call.total[1] = 0
        writer.step(call)
        if attributes["retention"] == "budget":
            writer.active(call.past, call.total)
        for name, array in writer.state.items():
            same_bits(array[1], state[name][1], f"{name} of a row without new tokens")
