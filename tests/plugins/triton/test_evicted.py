"""Kernels on rows with evicted tokens, against the reference, in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.helpers import make_attributes, make_text, poisoned_state
from tests.plugins.aligned_text import aligned_attributes, make_alignment
from tests.plugins.evicting_walk import EvictingWalk
from tests.plugins.subspace_text import make_tables, subspace_attributes
from tests.plugins.triton.attend_call import Blocks
from tests.plugins.triton.attend_walk import AttendWalk
from tests.plugins.triton.encode_walk import EncodeWalk

CODED: dict[str, Any] = {"evicts": 1, "window": 3, "sinks": 2, "ring_slots": 8}
SLERP: dict[str, Any] = {**CODED, "mode": "slerp", "head_size": 32}
FRAMED: dict[str, Any] = {**CODED, "segment_length": 32, "head_size": 32}
CAPACITY, SEGMENTS = 112, 5  # more segments than the capacity has

# By a name for the test: attributes, and the tables of every layer.
GROUPS: dict[str, Any] = {
    "exact": lambda: (make_attributes(evicts=1), ()),
    "slerp": lambda: (make_attributes(**SLERP), ()),
    "threshold": lambda: (
        make_attributes(**SLERP, retention="threshold", retention_threshold=0.75),
        (),
    ),
    "budget": lambda: (make_attributes(**SLERP, retention="budget"), ()),
    "aligned": lambda: aligned(retention="minmax", retention_gamma=0.4),
    "aligned budget": lambda: aligned(retention="budget", key_bits=4),
    "subspace": lambda: subspace(key_bits=(8, 16, 4, 16), value_bits=(4, 32)),
}


def aligned(**given: Any) -> Any:
    """A group in a common basis."""
    attributes = aligned_attributes(**FRAMED | given)
    return attributes, make_alignment(attributes)


def subspace(**given: Any) -> Any:
    """A group of joint codes."""
    attributes = subspace_attributes(**FRAMED | {"group_size": 2} | given)
    return attributes, make_tables(attributes)


def walk_text(attributes: dict[str, Any]) -> Any:
    """Texts of two rows, whose queries are short, so that every token has some weight."""
    text = make_text(attributes, 112, batch=2, dtype=np.float16)
    text.query *= np.float16(0.3)
    return text


def empty_state(attributes: dict[str, Any]) -> dict[str, np.ndarray]:
    """Two rows; where keys have no frame there is one segment."""
    framed = attributes["has_decoder"] and attributes["segment_length"]
    return poisoned_state(attributes, 2, CAPACITY, 6, np.float16, SEGMENTS if framed else 1)


@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize("choice", ["all that may", "some"])
@pytest.mark.parametrize("name", GROUPS)
def test_attention(name: str, choice: str, block: int) -> None:
    """Segments begin in the middle of tiles of 32, and end there; splits begin in segments."""
    attributes, tables = GROUPS[name]()
    blocks = Blocks(codes=block, exact=block, splits=2 if block == 32 else 3)
    walk = AttendWalk(attributes, empty_state(attributes), tables=tables, blocks=blocks, layers=[0])
    EvictingWalk(attributes, walk_text(attributes), choice, block).run(walk, walk.step)


@pytest.mark.parametrize("choice", ["all that may", "some"])
@pytest.mark.parametrize("name", GROUPS)
def test_writing(name: str, choice: str) -> None:
    """Codes, magnitudes, marks and exact tokens come to their slots, and nothing else changes."""
    attributes, tables = GROUPS[name]()
    walk = EncodeWalk(
        attributes, tables=tables, capacity=CAPACITY, retained=6,
        segments=empty_state(attributes)["evicted"].shape[1] - 1,
    )  # fmt: skip
    EvictingWalk(attributes, walk_text(attributes), choice, 3).run(walk, walk.step)
    walk.finish()
