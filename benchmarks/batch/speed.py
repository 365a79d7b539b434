"""Tokens per second of a batch, by the number of its rows."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from minicache.runtime import Batch, Session


@dataclass
class Speed:
    """One number of rows.

    Attributes:
        rows: side by side.
        step_ms: median of a decode step's wall time.
        cpu_ms: median of its CPU time, of all threads; what other processes do hardly changes it.
        tokens_per_second: of all rows together, in the decode steps.
        prompt_seconds: to read a prompt, beside nothing else.
    """

    rows: int
    step_ms: float
    cpu_ms: float
    tokens_per_second: float
    prompt_seconds: float


def measure_speed(folder: Path, rows: int, context: int, steps: int, threads: int | None) -> Speed:
    """Fills ``rows`` rows with prompts of ``context`` tokens, then times decode steps of all."""
    random = np.random.default_rng(0)
    size = context + steps + 4
    with Session(folder, batch_size=rows, max_sequence_length=size, threads=threads) as session:
        batch = Batch(session)
        for _ in range(rows):
            # Of random tokens no text ends early.
            prompt = random.integers(100, session.manifest.vocab_size, context).tolist()
            batch.add(prompt, steps + 2)
        start, waiting = time.perf_counter(), set(batch.active)
        while waiting:
            waiting -= {token.request for token in batch.step()}
        prompts = time.perf_counter() - start
        times = []
        for _ in range(steps):
            start = time.perf_counter(), time.process_time()
            given = len(batch.step())
            if given == rows:
                times.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    step, cpu = np.median(times, axis=0)
    return Speed(rows, 1e3 * float(step), 1e3 * float(cpu), rows / float(step), prompts / rows)
