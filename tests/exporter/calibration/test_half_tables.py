"""Tables become halves where halves hold them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicache.exporter.calibration.half_tables import (
    RELATIVE_ERROR,
    as_halves,
    rounded_to_halves,
)


def random_table(scale: float, seed: int = 0) -> np.ndarray:
    """Two heads' tables of five rows of twelve numbers."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((2, 5, 12)) * scale).astype(np.float32)


@given(exponent=st.integers(-40, 40), seed=st.integers(0, 1000))
def test_no_number_moves_far(exponent: int, seed: int) -> None:
    """Whatever the scale; at usual ones the result is a table of halves."""
    table = random_table(2.0**exponent, seed)
    found = rounded_to_halves(table)
    largest = np.abs(table).max(axis=-1, keepdims=True)
    assert found.dtype == np.float32
    assert (np.abs(found - table) <= RELATIVE_ERROR * largest).all()
    halves = as_halves(found)
    np.testing.assert_array_equal(halves, found)
    if -8 <= exponent <= 8:
        assert halves.dtype == np.float16


@pytest.mark.parametrize("scale", [1e-6, 1e6], ids=["subnormal", "overflow"])
def test_one_row_out_of_range_keeps_the_table(scale: float) -> None:
    """A row that halves cannot hold is not given up for the others."""
    table = random_table(1.0)
    table[1, 2] *= scale
    assert rounded_to_halves(table) is table
    assert as_halves(table) is table


def test_small_numbers_of_a_row_and_empty_rows_are_rounded() -> None:
    """What is lost counts beside the row's largest number, and zeros lose nothing."""
    table = random_table(1.0)
    table[0, 0, 3:] *= 1e-7
    table[1, 1] = 0
    found = as_halves(rounded_to_halves(table))
    assert found.dtype == np.float16 and not found[1, 1].any()


def test_numbers_that_are_no_halves_stay() -> None:
    """Narrowing alone rounds nothing."""
    table = random_table(1.0)
    assert as_halves(table) is table
