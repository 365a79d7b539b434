"""Weights in pages of 2 MB.

A decode step reads every weight once, and in pages of 4 KB looks up an address for every 4 KB of
them. In a virtual machine, where a lookup walks through two levels of page tables, that can take
longer than the reading. What is in memory already is moved into large pages (``MADV_COLLAPSE`` of
Linux 6.1); elsewhere all stays as it is.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

HUGE_PAGE = 2 << 20
_MADV_COLLAPSE = 25


def _private_memory() -> Iterator[tuple[int, int]]:
    """Ranges of writable memory of this process that no file stands behind: [begin, end)."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, rights, _, _, inode, *_ = line.split()
        if rights == "rw-p" and inode == "0":
            begin, end = (int(address, 16) for address in addresses.split("-"))
            yield begin, end


def collapse_pages() -> int:
    """Moves this process's memory into pages of 2 MB, wherever a whole one is in use.

    It concerns the whole process and takes a few milliseconds for each page. The state of sessions
    keeps its small pages, so that it is committed as texts grow.

    Returns:
        Bytes that lie in large pages now; 0 where the system has none to give.
    """
    if not sys.platform.startswith("linux"):
        return 0
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    count = 0
    for begin, end in _private_memory():
        first = -(-begin // HUGE_PAGE) * HUGE_PAGE
        for page in range(first, end - HUGE_PAGE + 1, HUGE_PAGE):
            count += libc.madvise(page, HUGE_PAGE, _MADV_COLLAPSE) == 0
    return count * HUGE_PAGE
