"""Rows that evict, through the C++ plan and the interpreted kernels, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.helpers import Array, make_attributes, make_text, poisoned_state
from tests.plugins.comparison import Comparison
from tests.plugins.evicting_walk import EvictingWalk
from tests.plugins.gpu.gpu_group import GpuGroup
from tests.plugins.gpu.walk_modes import SMALL, aligned, compare, slerp, subspace

TOKENS, CAPACITY, SEGMENTS = 112, 112, 6
# The walk goes back by 5 tokens. Blocks of codes take 64 tokens, or 32 in segments of 32.
GIVEN: dict[str, Any] = {"evicts": 1, "window": 3, "sinks": 2, "ring_slots": 8, "num_heads": 2,
                         "kv_num_heads": 1}  # fmt: skip
FRAMED: dict[str, Any] = {**GIVEN, "segment_length": 32}
PAIR: dict[str, Any] = {"slerp_t": 0.5, "delta_bits": 4}
GROUPS: dict[str, Any] = {
    "exact": lambda: (make_attributes(**SMALL.heads, evicts=1), ()),
    "deltas": lambda: slerp(**GIVEN, **PAIR, retention="threshold", retention_threshold=0.4),
    "budget": lambda: slerp(**GIVEN, key_bits=4, retention="budget", magnitude="upper"),
    "aligned deltas": lambda: aligned(**FRAMED, **PAIR, key_bits=4),
    "aligned budget": lambda: aligned(**FRAMED, retention="budget"),
    "subspace": lambda: subspace(**FRAMED, group_size=2),
}


class EvictingComparison(Comparison):
    """Kernels beside the reference, whose rows are evicted from."""

    @property
    def state(self) -> dict[str, Array]:
        return self.kernel.state


def make_group(name: str, **given: Any) -> GpuGroup:
    """A group on an empty, poisoned state, whose table has more segments than its capacity."""
    attributes, tables = GROUPS[name]()
    attributes = {**attributes, **given}
    framed = attributes["has_decoder"] and attributes["segment_length"]
    segments = SEGMENTS if framed else 1
    state = poisoned_state(attributes, 2, CAPACITY, 6, np.float16, segments)
    return GpuGroup(attributes, state, np.float16, tables, {"split_tokens": 48})


def make_walk(attributes: dict[str, Any], choice: str) -> EvictingWalk:
    text = make_text(attributes, TOKENS, batch=2, dtype=np.float16, noise=0.4)
    return EvictingWalk(attributes, text, choice, 1)


@pytest.mark.parametrize(
    ("name", "choice"),
    [
        *((name, "some") for name in GROUPS),
        *((name, "all that may") for name in ("exact", "subspace")),
    ],
)
def test_walk(name: str, choice: str) -> None:
    """All outputs and all state, after every call."""
    group = make_group(name)
    compared = compare(group)
    comparison = EvictingComparison(group)
    comparison.tolerance = compared.tolerance
    make_walk(group.attributes, choice).run(comparison, comparison.step)
    comparison.finish()
    assert any("EVICTS=1" in key for key in group.keys)
    assert group.state["evicted"][:, -1].all()


@pytest.mark.parametrize("name", GROUPS)
def test_without_evicted_tokens_nothing_differs(name: str) -> None:
    """Rows that could evict and do not: bit by bit what kernels without a table give."""
    groups = make_group(name), make_group(name, evicts=0)
    walk = make_walk(groups[0].attributes, "nothing")
    for past, new in (([0, 0], [44, 19]), ([44, 19], [1, 1])):
        call = walk.text.call(past, new, slots=max(1, *new))
        outputs = [group.run(call) for group in groups]
        for a, b in zip(*outputs, strict=True):
            np.testing.assert_array_equal(a.view(np.uint16), b.view(np.uint16))
    assert not any("EVICTS=1" in key for key in groups[1].keys)
    for state, array in groups[1].state.items():
        same = (groups[0].state[state], array)
        np.testing.assert_array_equal(*(x.view(np.uint8) for x in same), state)
