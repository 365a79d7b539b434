"""Arrays in pages of 2 MB, where the system has them.

In pages of 4 KB a step looks up thousands of addresses: in a virtual machine, whose lookups go
through two levels of tables, that can take several times as long as reading what lies there. NumPy
asks for large pages only from 4 MB an array on, so that contestants with large caches would have
them and those with small ones not. Here all have them.
"""

from __future__ import annotations

import contextlib
import mmap

import numpy as np

from minicache.runtime.huge_pages import HUGE_PAGE

Array = np.ndarray
_CHUNK = 32 * HUGE_PAGE
_LINE = 64


class HugePages:
    """Memory of which arrays take their part, one after the other."""

    def __init__(self) -> None:
        self._free: Array = np.empty(0, np.uint8)

    def copy(self, array: Array) -> Array:
        """The array with its content, at the beginning of a cache line.

        Args:
            array: any.
        """
        size = max(array.nbytes, 1)
        if size > len(self._free):
            self._free = self._chunk(size)
        place, self._free = self._free[:size], self._free[-(-size // _LINE) * _LINE :]
        taken: Array = place[: array.nbytes].view(array.dtype).reshape(array.shape)
        taken[...] = array
        return taken

    @staticmethod
    def _chunk(size: int) -> Array:
        size = -(-max(size, _CHUNK) // HUGE_PAGE) * HUGE_PAGE
        pages = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError, AttributeError):  # a system without
            pages.madvise(mmap.MADV_HUGEPAGE)
        whole = np.frombuffer(pages, np.uint8)
        return whole[-whole.ctypes.data % HUGE_PAGE :][:size]
