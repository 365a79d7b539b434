"""A small text in slerp mode, run by the reference call by call: of test_encode and test_rewind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minicache.plugins.reference import run_group
from tests.helpers import Text, poisoned_state

TOKENS = 40
CAPACITY = 48
SMALL = {"mode": "slerp", "window": 5, "sinks": 3, "ring_slots": 11}
State = dict[str, np.ndarray]


def run_slerp(
    attributes: dict[str, Any],
    text: Text,
    calls: list[tuple[int, int]],
    state: State | None = None,
    retained: int = 6,
    tables: Sequence[State] = (),
) -> tuple[np.ndarray, State]:
    """Attention ``[G, T, H, D]`` (NaN where not run) and state of a batch of one, exact in fp64."""
    group, _, tokens, heads, size = text.query.shape
    if state is None:
        state = poisoned_state(attributes, 1, CAPACITY, retained, np.float64)
    out = np.full((group, tokens, heads, size), np.nan)
    for past, new in calls:
        call = text.call([past], [new], capacity=CAPACITY)
        attention, state = run_group(attributes, state, *call.arguments, tables=tables)
        out[:, past : past + new] = np.stack(attention)[:, 0].reshape(group, new, heads, size)
    return out, state
