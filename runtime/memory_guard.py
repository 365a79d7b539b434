"""Whether a cache fits into memory, asked before it is allocated."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from minicache.exporter.schemas import CAPACITY_MULTIPLE
from minicache.runtime.cache import STORAGE, resolve_shape
from minicache.runtime.errors import SessionError
from minicache.runtime.manifest import Manifest

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")  # version 2, as a container sees its own


def cache_bytes(manifest: Manifest, batch_size: int, capacity: int) -> int:
    """Bytes of the state of ``batch_size`` rows of ``capacity`` tokens.

    Raises:
        PackageError: the manifest names a dimension that it does not define.
    """
    total = 0
    for state in manifest.state:
        shape = resolve_shape(state, manifest, batch_size, capacity)
        try:
            item = np.dtype(STORAGE.get(state.dtype, state.dtype)).itemsize
        except TypeError:  # the allocation says so, with the remedy
            continue
        total += item * math.prod(shape)
    return total


def largest_context(manifest: Manifest, batch_size: int, available: int) -> int:
    """Tokens per row whose cache fits into ``available`` bytes; a multiple of 16, 0 if none do."""
    low, high = 0, manifest.max_sequence_length // CAPACITY_MULTIPLE
    while low < high:
        middle = (low + high + 1) // 2
        if cache_bytes(manifest, batch_size, middle * CAPACITY_MULTIPLE) <= available:
            low = middle
        else:
            high = middle - 1
    return low * CAPACITY_MULTIPLE


def check_room(
    manifest: Manifest, batch_size: int, capacity: int, available: int | None, where: str = "memory"
) -> None:
    """Checks that a cache will fit.

    Memory is committed only as rows grow; but a session that would end in the middle of a text, and
    the process with it, is refused at its start.

    Args:
        manifest: of the exported folder.
        batch_size: rows.
        capacity: tokens per row.
        available: bytes that can be had; None: nobody knows, and the allocation decides.
        where: what is short, for the message.

    Raises:
        SessionError: it will not; with the bytes needed and available and the largest context.
    """
    needed = cache_bytes(manifest, batch_size, capacity)
    if available is None or needed <= available:
        return
    most = largest_context(manifest, batch_size, available)
    remedy = f"give max_sequence_length={most} or less, or a smaller batch_size"
    if not most:
        remedy = "not even one of 16 tokens fits: give a smaller batch_size, or free memory"
    raise SessionError(
        f"the cache of {batch_size} row(s) x {capacity} tokens does not fit into {where}: it needs "
        f"{_size(needed)}, {_size(max(available, 0))} are available; {remedy}"
    )


def available_bytes() -> int | None:
    """Bytes that this process can still have without others being swapped out or killed.

    The system's own estimate, or what is left of the container's limit; None where neither is told.
    """
    found = [known for known in (_system_bytes(), _container_bytes()) if known is not None]
    return min(found, default=None)


def _system_bytes() -> int | None:
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return None
    fields = {name: rest for name, _, rest in (line.partition(":") for line in lines)}
    number = fields.get("MemAvailable", "").split()
    return int(number[0]) * 1024 if number and number[0].isdigit() else None


def _container_bytes() -> int | None:
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        stat = (_CGROUP / "memory.stat").read_text().splitlines()
    except (OSError, ValueError):
        return None
    if not limit.isdigit():
        return None
    # Pages of files that nobody has read lately are given back on demand.
    fields = dict(line.split(" ", 1) for line in stat if " " in line)
    cached = fields.get("inactive_file", "0")
    return int(limit) - used + (int(cached) if cached.isdigit() else 0)


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
