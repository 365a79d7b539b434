"""Memory in large pages: the same content, and a session's state left as it is."""

from __future__ import annotations

import mmap
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from minicache.runtime import Session
from minicache.runtime.huge_pages import HUGE_PAGE, collapse_pages
from minicache.runtime.lazy_zeros import LazyZeros
from tests.runtime.tiny_model import VARIANTS


def large_bytes() -> int:
    """Of this process, in large pages."""
    text = Path("/proc/self/smaps_rollup").read_text()
    found = re.search(r"AnonHugePages:\s+(\d+) kB", text)
    assert found
    return int(found[1]) * 1024


def small_pages_of(zeros: LazyZeros) -> int:
    """How many of its pages are in memory."""
    first = zeros.array.ctypes.data // mmap.PAGESIZE
    with open("/proc/self/pagemap", "rb") as pagemap:
        pagemap.seek(8 * first)
        entries = np.frombuffer(pagemap.read(8 * (zeros.array.nbytes // mmap.PAGESIZE)), np.uint64)
    return int(np.count_nonzero(entries >> np.uint64(63)))


def small_pages(count: int) -> np.ndarray:
    """So many large pages' worth of memory in small ones, in use."""
    pages = mmap.mmap(-1, (count + 1) * HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    filled = np.frombuffer(pages, np.int64)
    filled[...] = np.arange(len(filled))
    return filled


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux has MADV_COLLAPSE")
def test_content_stays_and_state_keeps_its_small_pages() -> None:
    zeros = LazyZeros((64 << 20,), np.uint8)
    zeros.array[:: 1 << 20] = 7  # a small page of each MB
    filled = small_pages(8)
    committed, large = small_pages_of(zeros), large_bytes()
    assert committed == 64
    if collapse_pages() == 0:
        pytest.skip("this system gives no large pages")
    assert large_bytes() >= large + 4 * HUGE_PAGE
    np.testing.assert_array_equal(filled, np.arange(len(filled)))
    assert (zeros.array[:: 1 << 20] == 7).all()
    assert small_pages_of(zeros) == committed  # and not all of the 64 MB


@pytest.mark.usefixtures("ort_library")
def test_a_session_computes_the_same(tiny_folder: Callable[..., Path]) -> None:
    folder, ids = tiny_folder(VARIANTS[0]), np.arange(40)[None]
    logits = []
    for huge in (False, True):
        with Session(folder, threads=1, huge_pages=huge) as session:
            logits.append(session.forward(ids))
    np.testing.assert_array_equal(*logits)


def test_elsewhere_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert collapse_pages() == 0
