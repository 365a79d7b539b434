"""Memory that is committed and given back by pages."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from minicache.runtime.lazy_zeros import LazyZeros
from tests.runtime.test_memory import resident_bytes

PAGE = mmap.PAGESIZE


@pytest.mark.parametrize("row_bytes", [PAGE, PAGE * 5 // 2, PAGE // 2, 96])
@pytest.mark.parametrize("rows", [slice(0, 1), slice(1, 3), slice(3, 4), slice(0, 4)])
def test_only_pages_within_the_rows_are_given_back(row_bytes: int, rows: slice) -> None:
    zeros = LazyZeros((4, row_bytes // 4), np.int32)
    assert zeros.array.ctypes.data % PAGE == 0 and not zeros.array.any()
    zeros.array[...] = 7
    zeros.release(rows)
    places = np.arange(4 * row_bytes).reshape(4, row_bytes)
    page = places // PAGE * PAGE
    start, end = rows.start * row_bytes, rows.stop * row_bytes
    gone = ((page >= start) & (page + PAGE <= end))[:, ::4]
    np.testing.assert_array_equal(zeros.array, np.where(gone, 0, 7))


def test_memory_follows_what_is_written() -> None:
    size = 64 << 20
    before = resident_bytes()
    zeros = LazyZeros((8, size // 8), np.uint8)
    assert resident_bytes() - before < size // 8
    zeros.array[...] = 1
    assert resident_bytes() - before > size * 7 // 8
    zeros.release(slice(2, 8))
    assert resident_bytes() - before < size * 3 // 8
    zeros.array[5] = 2  # and again
    assert (zeros.array[5] == 2).all() and not zeros.array[4].any()


def test_nothing_is_something_too() -> None:
    zeros = LazyZeros((2, 0, 4), np.float16)
    zeros.release(slice(0, 2))
    assert zeros.array.shape == (2, 0, 4)
