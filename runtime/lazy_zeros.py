"""Memory that the system commits page by page, and takes back row by row."""

from __future__ import annotations

import contextlib
import math
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt


class LazyZeros:
    """Zeros that begin on a page of their own; a page is committed when it is first written to.

    NumPy's own zeros may come in pages of 2 MB, of which one token commits a whole one in each head
    of each layer; these never do, whatever the system or ``collapse_pages`` gives others.

    Args:
        shape: dimensions, rows first.
        dtype: element type.

    Attributes:
        array: the zeros.

    Raises:
        MemoryError, OSError, OverflowError, ValueError: they are beyond what can be addressed.
        TypeError: NumPy has no such type.
    """

    def __init__(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        kind = np.dtype(dtype)
        count = math.prod(shape)
        size = max(count * kind.itemsize, 1)
        self._pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without large pages
                self._pages.madvise(mmap.MADV_NOHUGEPAGE)
        self.array: npt.NDArray[Any] = np.frombuffer(self._pages, kind, count).reshape(shape)

    def release(self, rows: slice) -> None:
        """Gives the pages that lie within some rows back; what was in them is zero again."""
        each = self.array.size // len(self.array)
        self.release_elements(rows.start * each, rows.stop * each)

    def release_elements(self, first: int, end: int) -> None:
        """Likewise, within the elements [first, end) in the order of memory."""
        size = self.array.itemsize
        first = -(-first * size // mmap.PAGESIZE) * mmap.PAGESIZE
        end = end * size // mmap.PAGESIZE * mmap.PAGESIZE
        if end > first:
            self._pages.madvise(mmap.MADV_DONTNEED, first, end - first)
