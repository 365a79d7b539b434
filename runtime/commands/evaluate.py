"""``minicache evaluate``: quality and bytes of an export, against its original."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minicache.runtime.evaluate import EvaluationResult


def add_evaluate_parser(subparsers: Any) -> None:
    """Adds the parser of ``evaluate``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "evaluate", help="measure what an export loses and saves"
    )
    parser.add_argument("folder", type=Path, help="folder that minicache-export wrote")
    parser.add_argument("--original", type=Path, help="the model it was made from; without: no KL")
    parser.add_argument(
        "--text", type=Path, help="UTF-8 text, \\f between documents; default: built in"
    )
    parser.add_argument(
        "--context", type=int, default=1024, help="tokens per document (default: %(default)s)"
    )
    parser.add_argument(
        "--prefill", type=int, help="unscored tokens (default: 512 or half the context)"
    )
    parser.add_argument(
        "--chunk", type=int, help="tokens per call (default: 32, at most the window)"
    )
    parser.add_argument(
        "--max-documents", type=int, metavar="N", help="at most so many (default: all)"
    )
    parser.add_argument("--threads", type=int, help="CPU threads (default: ONNX Runtime's choice)")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Evaluates the folder and prints the result."""
    from minicache.runtime.evaluate import evaluate_folder

    result = evaluate_folder(
        arguments.folder,
        arguments.original,
        arguments.text,
        context=arguments.context,
        prefill=arguments.prefill,
        chunk=arguments.chunk,
        max_documents=arguments.max_documents,
        threads=arguments.threads,
        quiet=arguments.quiet or arguments.json,
    )
    if arguments.json:
        print(json.dumps(result.to_dict(), indent=1))
    else:
        print_result(result, str(arguments.folder))
    return 0


def print_result(result: EvaluationResult, title: str) -> None:
    """Prints the result as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table("measure", title=title, title_justify="left")
    table.add_column("value", justify="right")
    for name, text in table_rows(result):
        table.add_row(name, text)
    Console(markup=False).print(table)


def table_rows(result: EvaluationResult) -> list[tuple[str, str]]:
    """Names and values of the table, in order; what was not measured is left out."""
    rows: list[tuple[str, str]] = []
    if result.perplexity_original is not None:
        rows.append(("perplexity, original", f"{result.perplexity_original:.3f}"))
    rows.append(("perplexity, exported", f"{result.perplexity_exported:.3f}"))
    if result.perplexity_ratio is not None:
        rows.append(("perplexity ratio", f"{result.perplexity_ratio:.4f}"))
    if result.perplexity_ratio_low is not None:
        interval = f"{result.perplexity_ratio_low:.4f} .. {result.perplexity_ratio_high:.4f}"
        rows.append(("95 % interval (documents)", interval))
    if result.kl_mean is not None:
        rows.append(("KL(original || exported), nats", f"{result.kl_mean:.5f}"))
    if result.top1_agreement is not None:
        rows.append(("top-1 agreement", f"{100 * result.top1_agreement:.2f} %"))
    if result.bits_per_element < 16:
        rows.append(("bits per element, coded part", f"{result.bits_per_element:.2f}"))
    rows += [
        ("KV cache, resident", f"{result.kv_bytes_resident / 1e6:.2f} MB"),
        ("KV cache, plain fp16", f"{result.kv_bytes_fp16 / 1e6:.2f} MB"),
        ("KV cache, plain in the model's type", f"{result.kv_bytes_exact_model / 1e6:.2f} MB"),
        ("compression (plain fp16 / resident)", f"{result.compression_ratio:.2f}"),
        ("scored tokens", f"{result.tokens} in {result.documents} documents"),
        ("context / prefill / chunk", f"{result.context} / {result.prefill} / {result.chunk}"),
    ]
    return rows
