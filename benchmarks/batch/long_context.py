"""Memory at a long context: what a process has beyond the state's own bytes.

The state of the earlier tokens is written by hand, which commits its memory; the last chunk of the
prompt and the decode steps behind it are computed. (Computing all of it takes the better part of an
hour on a core and changes no size: ``--whole-prompt`` does.)
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.process_memory import anonymous_bytes
from minicache.runtime import Session
from minicache.runtime.manifest import FILE_NAME, Manifest
from minicache.runtime.row_calls import PREFILL_CHUNK
from minicache.runtime.used_slots import used_slots

STEPS = 64


@dataclass
class LongContext:
    """One context.

    Attributes:
        context: tokens before the decode steps.
        resident: growth of the process's own memory by state, activations and what they need.
        state: bytes of the state that the tokens take up.
        step_ms: median of a decode step's wall time.
    """

    context: int
    resident: int
    state: int
    step_ms: float


def measure_context(
    folder: Path, context: int, capacity: int, whole_prompt: bool, threads: int | None
) -> LongContext:
    """Runs the end of a prompt of ``context`` tokens and 64 decode steps, in this process."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".longer-") as scratch:
        longer = _with_longest(folder, Path(scratch), capacity)
        session = Session(longer, max_sequence_length=capacity, threads=threads)
    with session:
        random = np.random.default_rng(0)
        ids = random.integers(100, session.manifest.vocab_size, context)
        session.prefill(ids[:16])  # the weights and their packed copies are there
        session.reset(release=True)
        before = anonymous_bytes()
        first = 0 if whole_prompt else context - PREFILL_CHUNK
        if first:
            _write_by_hand(session, first)
        session.prefill(ids[first:])
        times = []
        for step in range(STEPS):
            start = time.perf_counter()
            session.forward([[100 + step]], logits="last")
            times.append(time.perf_counter() - start)
        resident = anonymous_bytes() - before
        state = session.row_bytes(int(session.lengths[0]))
    return LongContext(context, resident, state, 1e3 * float(np.median(times)))


def _write_by_hand(session: Session, length: int) -> None:
    """Commits the memory of ``length`` tokens, and takes them for the cache."""
    cache = session._cache
    for past, array in cache.arrays.items():
        axis, slots = used_slots(cache.states[past], array.shape, length, session.manifest.window)
        if axis:
            array[(slice(None),) * axis + (slice(slots),)] = 1
    session._restart(np.array([length], np.int32))


def _with_longest(folder: Path, scratch: Path, capacity: int) -> Path:
    """The folder under another name, exported for ``capacity`` tokens as far as memory goes."""
    for file in folder.iterdir():
        if file.is_file() and file.name != FILE_NAME:
            try:
                os.link(file, scratch / file.name)
            except OSError:
                shutil.copy(file, scratch / file.name)
    content = json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))
    content["max_sequence_length"] = max(capacity, content["max_sequence_length"])
    (scratch / FILE_NAME).write_text(json.dumps(content), encoding="utf-8")
    Manifest.load(scratch)
    return scratch
