"""How fast is one decode step at T cached tokens, exported against original?

Baseline: the same original graph driven the best way its form allows: IOBinding, each step's
presents bound as the next step's pasts without a copy on our side (the graph itself concatenates).
Both models read the same tokens first; then rounds of steps alternate between them, so that a busy
machine disturbs both alike.

    python benchmarks/bench_decode.py MODEL OUT --tokens 2048 --threads 2
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from minicache.exporter.original import OriginalModel
from minicache.runtime import Session

Forward = Callable[[npt.NDArray[np.int64]], object]


def session_step(session: Session) -> Forward:
    """A step that reads the last token's logits, as decoding does."""
    return lambda ids: session.forward(ids, logits="last")


def fill(forward: Forward, ids: npt.NDArray[np.int64], chunk: int = 512) -> None:
    """Feeds the prompt in chunks."""
    for start in range(0, ids.shape[1], chunk):
        forward(ids[:, start : start + chunk])


def steps(forward: Forward, count: int) -> list[tuple[float, float]]:
    """Wall and CPU seconds of each of ``count`` single-token steps."""
    token = np.ones((1, 1), np.int64)
    times = []
    for _ in range(count):
        wall, cpu = time.perf_counter(), time.process_time()
        forward(token)
        times.append((time.perf_counter() - wall, time.process_time() - cpu))
    return times


def main() -> None:
    """Prints the medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("original", type=Path, help="the stock model.onnx or its folder")
    parser.add_argument("exported", type=Path, nargs="+", help="folders minicache-export wrote")
    parser.add_argument("--tokens", type=int, default=2048, help="cached tokens T")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="steps per round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()

    ids = np.random.default_rng(0).integers(10, 1000, (1, arguments.tokens))
    original = OriginalModel(arguments.original, threads=arguments.threads)
    runs: dict[str, Forward] = {"original, IOBinding": original.step}
    sessions = [Session(folder, threads=arguments.threads) for folder in arguments.exported]
    for folder, session in zip(arguments.exported, sessions, strict=True):
        runs[folder.name] = session_step(session)
    for forward in runs.values():
        fill(forward, ids)
        steps(forward, 2)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(arguments.rounds):
        for name, forward in runs.items():
            times[name] += steps(forward, arguments.steps)

    result: dict[str, object] = {"tokens": arguments.tokens, "threads": arguments.threads}
    first: tuple[float, float] | None = None
    print(f"decode step at T = {arguments.tokens}, {arguments.threads} thread(s), medians")
    print(f"{'model':28} {'wall ms':>9} {'CPU ms':>9} {'wall, x faster':>15} {'CPU, x faster':>14}")
    for name, measured in times.items():
        wall, cpu = (statistics.median(values) for values in zip(*measured, strict=True))
        first = first or (wall, cpu)
        ratios = first[0] / wall, first[1] / cpu
        print(f"{name:28} {1e3 * wall:9.2f} {1e3 * cpu:9.2f} {ratios[0]:15.2f} {ratios[1]:14.2f}")
        result[name] = {
            "wall_ms": 1e3 * wall,
            "cpu_ms": 1e3 * cpu,
            "wall_ratio": ratios[0],
            "cpu_ratio": ratios[1],
        }
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
