"""Retention over calls that go back, run twice and overflow, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.helpers import make_attributes, make_text
from tests.plugins.triton.encode_walk import EncodeWalk
from tests.plugins.triton.interpreter import TYPES

# Past and new tokens of both rows. Calls are repeated; rows go back by up to X = 6 and on with
# another text; the first call's tokens are encoded from the new keys and values, sinks among them.
CALLS = [
    ((0, 0), (24, 2)),
    ((24, 2), (4, 5)),
    ((24, 2), (4, 5)),
    ((28, 7), (0, 12)),
    ((23, 19), (1, 1)),
    ((24, 16), (6, 3)),
    ((30, 19), (1, 1)),
]
BASE: dict[str, Any] = {"mode": "slerp", "window": 2, "sinks": 3, "ring_slots": 8}
BOUND = {"retention_threshold": 0.75}
SWAPPED = {"kv_num_heads": 2, "key_head_permutation": (0, 1, 1, 0),
           "value_head_permutation": (1, 0, 0, 1)}  # fmt: skip


@pytest.mark.parametrize(
    ("variant", "most", "dtype", "exact"),
    [
        ({"retention": "threshold", **BOUND, **SWAPPED}, 5, "bf16", "fp16"),
        ({"retention": "minmax", "retention_gamma": 0.6}, 40, "bf16", "bf16"),
        (
            {"retention": "minmax", "retention_scope": "any-head", "group_size": 3},
            0,
            "fp16",
            "fp16",
        ),
        ({"retention": "budget", "magnitude": "upper"}, 5, "fp16", "fp16"),
        ({"retention": "budget", "retention_scope": "any-head", "key_bits": 16}, 0, "bf16", "fp16"),
    ],
    ids=str,
)
def test_going_back(variant: dict[str, Any], most: int, dtype: str, exact: str) -> None:
    """All of the state is the reference's after every call, vectors and signs bit for bit."""
    attributes = make_attributes(**BASE | {"head_size": 8} | variant)
    texts = [
        make_text(attributes, 44, batch=2, dtype=TYPES[dtype], seed=seed, noise=0.3 + 0.3 * seed)
        for seed in range(2)
    ]
    walk = EncodeWalk(attributes, capacity=48, retained=most, exact_dtype=TYPES[exact])
    held = set()
    for number, (past, new) in enumerate(CALLS):
        call = texts[number > 3].call(past, new)
        once = {name: array.copy() for name, array in walk.state.items()}
        walk.step(call)
        held |= set(walk.state["retained_position"].ravel().tolist())
        if number == 2:  # the call before, again: nothing changes
            for name, array in walk.state.items():
                np.testing.assert_array_equal(array.view(np.uint8), once[name].view(np.uint8))
    walk.finish()
    if walk.state["retained_position"].size:
        assert len(held) > 5, f"only {sorted(held)} were ever retained"
