"""How many streams a fixed budget of cache memory holds: allocated, written, and counted."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from benchmarks.process_memory import anonymous_bytes
from minicache.runtime.cache import Cache
from minicache.runtime.manifest import Manifest
from minicache.runtime.memory_guard import cache_bytes

HALF = {"float32": "float16"}


@dataclass
class Streams:
    """What fits.

    Attributes:
        rows: streams within the budget.
        row_bytes: of one.
        buffers: bytes of all of them.
        resident: growth of the process when every byte of them is written.
    """

    rows: int
    row_bytes: int
    buffers: int
    resident: int


def count_streams(folder: Path, half: bool, context: int, budget: int) -> Streams:
    """Allocates as many rows as fit.

    Args:
        folder: an export.
        half: count its exact state as fp16, whatever the model's type.
        context: tokens of each row.
        budget: bytes.
    """
    manifest = Manifest.load(folder)
    if half:
        states = tuple(
            dataclasses.replace(state, dtype=HALF.get(state.dtype, state.dtype))
            for state in manifest.state
        )
        manifest = dataclasses.replace(manifest, state=states)
    row = cache_bytes(manifest, 1, context)
    rows = budget // row
    before = anonymous_bytes()
    cache = Cache(manifest, rows, context)
    for array in cache.arrays.values():
        array.view("uint8")[...] = 1
    return Streams(rows, row, cache.nbytes, anonymous_bytes() - before)
