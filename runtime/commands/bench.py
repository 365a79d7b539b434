"""``minicache bench``: speed and memory of an export beside its original."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minicache.exporter.reporting.number_text import size
from minicache.runtime.errors import SessionError

if TYPE_CHECKING:
    from minicache.runtime.bench import BenchResult, BenchRow


def add_bench_parser(subparsers: Any) -> None:
    """Adds the parser of ``bench``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "bench",
        help="measure speed and memory of an export, beside its original",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="folder that minicache-export wrote")
    parser.add_argument(
        "--baseline", type=Path, metavar="MODEL", help="the model it was made from; None: only OUT"
    )
    parser.add_argument(
        "--context", default="512,2048,8192", metavar="N,N", help="tokens in the cache"
    )
    parser.add_argument("--budget", default="1GiB", metavar="BYTES", help="for caches of a batch")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="turns of each model")
    parser.add_argument("--steps", type=int, default=8, metavar="N", help="decode steps of a turn")
    parser.add_argument("--text", type=Path, help="UTF-8 text to read; None takes the built-in one")
    parser.add_argument("--threads", type=int, help="CPU threads; None: ONNX Runtime's choice")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it: .svg or .png")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measures, and prints the table."""
    from minicache.runtime.bench import bench
    from minicache.runtime.bench_plot import check_plot_file, plot_bench
    from minicache.runtime.byte_count import read_byte_count

    if arguments.plot is not None:
        check_plot_file(arguments.plot)
    result = bench(
        arguments.folder,
        arguments.baseline,
        contexts=read_contexts(arguments.context),
        budget=read_byte_count(arguments.budget),
        threads=arguments.threads,
        rounds=arguments.rounds,
        steps=arguments.steps,
        text=arguments.text,
        quiet=arguments.quiet or arguments.json,
    )
    if arguments.plot is not None:
        plot_bench(result, arguments.plot)
    if arguments.json:
        print(json.dumps(result.to_dict(), indent=1))
    else:
        print_result(result, str(arguments.folder), arguments.budget)
    return 0


def read_contexts(text: str) -> list[int]:
    """Reads ``512,2048``; doubles are measured once.

    Raises:
        SessionError: it is no list of whole numbers.
    """
    try:
        return list(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError as error:
        raise SessionError(
            f"--context is {text!r}; give numbers of tokens, such as 512,2048"
        ) from error


def print_result(result: BenchResult, title: str, budget: str) -> None:
    """Prints a table per context; ``x`` is to the first original there, the export's baseline."""
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, highlight=False)
    for context in result.contexts:
        table = Table(
            "model",
            title=f"{title}: {context} tokens in the cache, rows in {budget}",
            title_justify="left",
        )
        for name in ("tokens/s", "x", "first token", "KV cache", "x", "rows"):
            table.add_column(name, justify="right")
        rows = result.of_context(context)
        for row in rows:
            table.add_row(*_cells(row, rows[1] if len(rows) > 1 else None))
        console.print(table)
    if any(row.kv_bytes_in_step != row.kv_bytes for row in result.rows):
        console.print("A growing cache exists twice within a step; rows are counted with that.")


def _cells(row: BenchRow, baseline: BenchRow | None) -> tuple[str, ...]:
    faster = smaller = ""
    if baseline is not None and row is not baseline:
        faster = f"{row.tokens_per_second / baseline.tokens_per_second:.2f}"
        smaller = f"1/{baseline.kv_bytes / row.kv_bytes:.2f}"
    return (
        row.name,
        f"{row.tokens_per_second:.1f}",
        faster,
        f"{row.first_token_seconds.median:.2f} s",
        size(row.kv_bytes),
        smaller,
        str(row.rows_in_budget),
    )
