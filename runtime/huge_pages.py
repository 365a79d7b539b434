"""Weights in pages of 2 MB.

A decode step reads every weight once, and in pages of 4 KB looks up an address for every 4 KB of
them. In a virtual machine, where a lookup walks through two levels of page tables, that can take
longer than the reading, as the host has it. What is in memory already is moved into large pages
(``MADV_COLLAPSE`` of Linux 6.1); elsewhere all stays as it is.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

HUGE_PAGE = 2 << 20
_MADV_COLLAPSE = 25
# /proc/self/pagemap: bytes per small page, and the bit that says that it is in memory.
_ENTRY, _PRESENT = 8, 63
_MOST = 0.9


def _private_memory() -> Iterator[tuple[int, int]]:
    """Ranges of writable memory of this process that no file stands behind: [begin, end)."""
    lines: list[bytes] = []
    with contextlib.suppress(OSError):  # no /proc: nothing to move
        lines = Path("/proc/self/maps").read_bytes().split(b"\n")
    for line in lines:
        fields = line.split(maxsplit=5)
        if len(fields) >= 5 and fields[1] == b"rw-p" and fields[4] == b"0":
            begin, end = (int(address, 16) for address in fields[0].split(b"-"))
            yield begin, end


def _full_pages(begin: int, end: int) -> Iterator[int]:
    """Large pages of [begin, end) of which most is in use: others would grow when moved."""
    small = HUGE_PAGE // mmap.PAGESIZE
    first = -(-begin // HUGE_PAGE) * HUGE_PAGE
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        for page in range(first, end - HUGE_PAGE + 1, HUGE_PAGE):
            pagemap.seek(page // mmap.PAGESIZE * _ENTRY)
            entries = np.frombuffer(pagemap.read(small * _ENTRY), np.uint64)
            if np.count_nonzero(entries >> np.uint64(_PRESENT)) > small * _MOST:
                yield page


def collapse_pages() -> int:
    """Moves this process's memory into pages of 2 MB, wherever at least 90 % of one are in use.

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
    with contextlib.suppress(OSError):  # no pagemap
        for begin, end in _private_memory():
            for page in _full_pages(begin, end):
                count += libc.madvise(page, HUGE_PAGE, _MADV_COLLAPSE) == 0
    return count * HUGE_PAGE
