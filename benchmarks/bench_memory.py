"""Are the state buffers really updated in place? Watches memory over many decode steps.

Three witnesses: resident memory of the process does not grow; the buffers' addresses do not change;
and the time that a step of an almost empty cache takes does not depend on the capacity, as it would
if a step copied the buffers.

    python benchmarks/bench_memory.py OUT --steps 500
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.process_memory import resident_bytes
from minicache.runtime import Session


def addresses(session: Session) -> list[int]:
    """First byte of every state buffer."""
    return [array.ctypes.data for array in session.cache_tensors().values()]


def decode(session: Session, steps: int) -> list[float]:
    """Seconds per step of feeding token 1 ``steps`` times."""
    token = np.ones((1, 1), np.int64)
    seconds = []
    for _ in range(steps):
        started = time.perf_counter()
        session.forward(token, logits="last")
        seconds.append(time.perf_counter() - started)
    return seconds


def main() -> None:
    """Prints the table; exits with 1 when a witness speaks against it."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()

    small = Session(arguments.folder, max_sequence_length=256)
    step_small = statistics.median(decode(small, 64))
    small_bytes = small.cache_bytes
    small.close()

    with Session(arguments.folder) as session:
        before = addresses(session)
        step_large = statistics.median(decode(session, 64))
        # The steps write pages of the buffers that no one had touched: count those separately.
        touched = session.cache_bytes * arguments.steps / session.manifest.max_sequence_length
        start = resident_bytes()
        decode(session, arguments.steps)
        grown = resident_bytes() - start
        moved = addresses(session) != before
        result = {
            "steps": arguments.steps,
            "cache_bytes": session.cache_bytes,
            "rss_growth_bytes": grown,
            "cache_bytes_first_touched": round(touched),
            "buffers_moved": moved,
            "step_ms_capacity_256": 1e3 * step_small,
            "step_ms_full_capacity": 1e3 * step_large,
            "cache_bytes_capacity_256": small_bytes,
        }
    for name, value in result.items():
        print(f"{name:28} {value:,.3f}" if isinstance(value, float) else f"{name:28} {value:,}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    # 8 MB: allocator noise; a single copied buffer set would be many times that.
    raise SystemExit(int(moved or grown > touched + (8 << 20)))


if __name__ == "__main__":
    main()
