"""Batches: speed by rows, streams in a budget of memory, and memory at a long context.

    python benchmarks/bench_batch.py --exact OUT_EXACT --coded OUT_5 OUT_8 --tables speed streams

``speed``: tokens per second of 1 to 8 rows in decode steps; the last column is how much less CPU
time a token takes than in a single run.
``streams``: rows of 8192 tokens that 512 MiB hold, allocated and written; exact ones count as fp16.
``context``: growth of the process from 4k to 32k tokens beside the growth of the state itself.

Each number comes from a process of its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.batch.long_context import measure_context
from benchmarks.batch.speed import measure_speed
from benchmarks.batch.streams import count_streams

TABLES = ("speed", "streams", "context")
MEGABYTE = 1 << 20


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Runs a measurement in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def speed_table(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Prints tokens per second by rows."""
    print(f"{arguments.tokens} tokens in each row, {arguments.steps} decode steps")
    print(
        f"{'export':>14} {'rows':>5} {'ms/step':>9} {'CPU ms':>9} {'tokens/s':>9} "
        f"{'CPU to 1 row':>14}"
    )
    results = []
    for folder in [arguments.exact, *arguments.coded]:
        one = None
        for rows in arguments.rows:
            size = rows, arguments.tokens, arguments.steps, arguments.threads
            found = apart(measure_speed, folder, *size)
            cost = found.cpu_ms / rows
            one = cost if one is None else one
            print(
                f"{folder.name:>14} {rows:5} {found.step_ms:9.1f} {found.cpu_ms:9.1f} "
                f"{found.tokens_per_second:9.1f} {one / cost:12.2f} x",
                flush=True,
            )
            results.append({"export": folder.name, **vars(found)})
    return results


def streams_table(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Prints how many streams fit into the budget."""
    budget = arguments.budget * MEGABYTE
    print(f"streams of {arguments.context} tokens in {arguments.budget} MiB, all bytes written")
    print(
        f"{'cache':>20} {'MiB/stream':>11} {'streams':>8} {'buffers MiB':>12} {'resident MiB':>13}"
    )
    results = []
    for folder in [arguments.exact, *arguments.coded]:
        half = folder == arguments.exact
        found = apart(count_streams, folder, half, arguments.context, budget)
        name = f"{folder.name}{' as fp16' if half else ''}"
        sizes = [size / MEGABYTE for size in (found.row_bytes, found.buffers, found.resident)]
        print(
            f"{name:>20} {sizes[0]:11.1f} {found.rows:8} {sizes[1]:12.1f} {sizes[2]:9.1f}",
            flush=True,
        )
        results.append({"export": name, **vars(found)})
    return results


def context_table(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Prints how much more a process has than its state grows."""
    short, long = arguments.short, arguments.long
    print(f"one row, from {short} to {long} tokens: prefill in chunks, then 64 decode steps")
    print(f"{'export':>14} {'state MiB':>10} {'process MiB':>12} {'ratio':>7} {'ms/step':>16}")
    results = []
    for folder in [arguments.exact, *arguments.coded]:
        size = long + 128, arguments.whole_prompt, arguments.threads
        low, high = (apart(measure_context, folder, context, *size) for context in (short, long))
        state, resident = high.state - low.state, high.resident - low.resident
        print(
            f"{folder.name:>14} {state / MEGABYTE:10.1f} {resident / MEGABYTE:12.1f} "
            f"{resident / state:7.3f} {low.step_ms:7.1f} {high.step_ms:8.1f}",
            flush=True,
        )
        results += [{"export": folder.name, **vars(found)} for found in (low, high)]
    return results


def main(words: Sequence[str] | None = None) -> None:
    """Prints the tables that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--exact", type=Path, required=True, help="export in exact mode")
    parser.add_argument("--coded", type=Path, nargs="*", default=[], help="other exports")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--tokens", type=int, default=256, help="prompt of each row, for speed")
    parser.add_argument("--steps", type=int, default=32, help="decode steps, for speed")
    parser.add_argument("--budget", type=int, default=512, help="MiB")
    parser.add_argument("--context", type=int, default=8192, help="tokens of a stream")
    parser.add_argument("--short", type=int, default=4096)
    parser.add_argument("--long", type=int, default=32768)
    parser.add_argument("--whole-prompt", action="store_true", help="compute all of the prompt")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(words)
    tables = {"speed": speed_table, "streams": streams_table, "context": context_table}
    results = {name: tables[name](arguments) for name in arguments.tables}
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
