"""Tables of halves: a decode step on a CPU takes as long as reading its tables does."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
RELATIVE_ERROR = 2.0**-11  # of a row's largest number: what rounding to a half may cost


def rounded_to_halves(table: Array) -> Array:
    """The table with each number the nearest half, or as it is where that would lose more.

    Args:
        table: ``[..., R, n]`` fp32, rows of decoders or encoders.

    Returns:
        fp32. Each number stays within ``RELATIVE_ERROR`` of its row's largest one, which numbers
        too large for fp16, and rows of very small ones, would not.
    """
    rounded = _halves(table).astype(np.float32)
    allowed = RELATIVE_ERROR * np.abs(table).max(axis=-1, keepdims=True)
    return rounded if (np.abs(rounded - table) <= allowed).all() else table


def as_halves(table: Array) -> Array:
    """The same numbers in fp16 where they are halves, else the table."""
    halves = _halves(table)
    return halves if (halves == table).all() else table


def _halves(table: Array) -> Array:
    with np.errstate(over="ignore"):
        return table.astype(np.float16)
