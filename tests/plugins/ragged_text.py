"""A batch of two rows whose calls differ in length: prefill in chunks, then decode steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.helpers import Text
from tests.plugins.comparison import Comparison

CAPACITY = 144
RETAINED = 9
PREFILL = ([37, 20], [9, 0], [1, 26])  # the second row skips a call
PREFILL_TOKENS = 48  # enough for either row, with one more
SLOTS: dict[str, Any] = {
    "window": 16,
    "sinks": 4,
    "ring_slots": 26,
    "head_size": 64,
    "num_heads": 4,
    "kv_num_heads": 2,
    "code_layout": "tile",
}


def compare_ragged(
    comparison: Comparison, text: Text, steps: int, capacity: int = CAPACITY
) -> None:
    """Runs the chunks, then ``steps`` single tokens, on a kernel and the reference."""
    past = np.zeros(2, int)
    for new in (*PREFILL, *[[1, 1]] * steps):
        comparison.step(text.call(list(past), list(new), capacity=capacity))
        past += new
    comparison.finish()
