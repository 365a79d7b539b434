"""Resident bytes of the cache of several exports of one model.

The buffers are allocated as a session allocates them and every byte is written, so that resident
memory (the operating system's own figure) can be set beside their sizes.

    python benchmarks/bench_sizes.py OUT_EXACT OUT_PAPER ... --context 32768
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.process_memory import resident_bytes
from minicache.runtime.cache import Cache
from minicache.runtime.manifest import Manifest


def measure(folder: Path, context: int) -> tuple[int, int]:
    """Bytes of the buffers, and growth of resident memory when all of them are written."""
    manifest = Manifest.load(folder)
    before = resident_bytes()
    cache = Cache(manifest, 1, context)
    for array in cache.arrays.values():
        array.view("uint8")[...] = 1
    return cache.nbytes, resident_bytes() - before


def main() -> None:
    """Prints one row per folder; ratios are to the first one."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+", help="the first is the baseline")
    parser.add_argument("--context", type=int, default=32768)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for folder in arguments.folders:
        # A process of its own: freed memory of one cache would hide the next one's.
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            buffers, resident = pool.submit(measure, folder, arguments.context).result()
        rows.append({"folder": folder.name, "buffers": buffers, "resident": resident})
    print(f"cache of one sequence of {arguments.context} tokens")
    print(f"{'export':32} {'buffer bytes':>16} {'resident':>16} {'of ' + rows[0]['folder']:>16}")
    for row in rows:
        row["share"] = row["buffers"] / rows[0]["buffers"]
        print(f"{row['folder']:32} {row['buffers']:16,} {row['resident']:16,} {row['share']:16.3f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
