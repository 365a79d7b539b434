"""What the exporter makes of many models: a row of proof for each, or the sentence that refuses it.

    python benchmarks/check_models.py FOLDER... --json models.json

A folder is a model, or holds folders of models. Every model is exported in exact mode into a
temporary folder by a process of its own, so that a crash or a hang costs one row. A row tells the
graph form, the rewritten layers, and how far logits are from the original's, relative to the
largest one: ``batch 1`` is a prefill and single steps, ``ragged`` the worst row of a padded batch.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

COLUMNS = {
    "model": "model",
    "form": "form",
    "layers": "layers",
    "dtype": "dtype",
    "windows": "windows",
    "batch_1": "batch 1",
    "ragged": "ragged",
    "tolerance": "tolerance",
    "top1": "top-1",
}
SUPPORTED = "supported"


def find_models(paths: Sequence[Path]) -> list[Path]:
    """Model files below ``paths``, sorted; of several in a folder ``model.onnx`` comes alone."""
    found: list[Path] = []
    for path in paths:
        if path.is_file():
            found.append(path)
            continue
        for folder in sorted({file.parent for file in path.rglob("*.onnx")}):
            files = sorted(folder.glob("*.onnx"))
            found += [file for file in files if file.name == "model.onnx"] or files
    return list(dict.fromkeys(found))


def describe(file: Path) -> dict[str, Any]:
    """Form, layers, dtype and windows, as the exporter finds them.

    Raises:
        MiniCacheError: the model is refused.
    """
    from minicache.exporter.find_attention import find_attention
    from minicache.exporter.io import load_model, read_facts

    found = find_attention(load_model(file), read_facts(file))
    windows = Counter(site.local_window for site in found.sites if site.local_window)
    return {
        "form": found.form,
        "dtype": found.dtype,
        "windows": ", ".join(f"{count} of {size}" for size, count in windows.items()),
    }


def prove(file: Path) -> dict[str, Any]:
    """Exports a model in exact mode and returns what its parity report says.

    Raises:
        MiniCacheError: the model is refused, or its logits differ.
    """
    from minicache.exporter import ExportOptions, export_model

    with tempfile.TemporaryDirectory() as folder:
        options = ExportOptions(mode="exact", quiet=True)
        result = export_model(file, Path(folder) / "exact", options)
    shares = [case.max_difference / (case.max_logit or 1.0) for case in result.parity.cases]
    return {
        "layers": result.manifest.num_layers,
        "batch_1": shares[0],
        "ragged": max(shares[1:], default="one row"),
        "tolerance": result.parity.tolerance,
        "top1": result.parity.top1_agreement,
        "notes": result.report.get("notes", []),
    }


def check_model(file: Path) -> dict[str, Any]:
    """One row; ``outcome`` is ``supported``, or the class of the error that ``sentence`` tells."""
    from minicache.runtime.errors import MiniCacheError

    row: dict[str, Any] = {}
    try:
        row |= describe(file)
        row |= prove(file)
        row["outcome"] = SUPPORTED
    except MiniCacheError as error:
        row |= {"outcome": type(error).__name__, "sentence": str(error)}
    except Exception as error:  # a bug of ours: the row must show it, the table must go on
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        row |= {"outcome": "crash", "sentence": f"{type(error).__name__} at {where}: {error}"}
    return row


def _answer(task: Callable[[Path], dict[str, Any]], file: Path, send: Connection) -> None:
    send.send(task(file))


def check_apart(
    file: Path, timeout: float, task: Callable[[Path], dict[str, Any]] = check_model
) -> dict[str, Any]:
    """``task`` on a model, in a process of its own; its answer with the model's name."""
    started = time.monotonic()
    row: dict[str, Any] = {"model": file.parent.name, "file": str(file)}
    if file.name != "model.onnx":
        row["model"] += f"/{file.stem}"
    # Forked from a process that has imported everything: that takes longer than a tiny model.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["minicache.exporter.pipeline", "onnxruntime"])
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(task, file, send))
    process.start()
    send.close()
    try:
        if receive.poll(timeout):
            row |= receive.recv()
        else:
            row |= {"outcome": "timeout", "sentence": f"no answer within {timeout:g} s"}
    except EOFError:
        process.join()
        row |= {"outcome": "crash", "sentence": f"its process ended with {process.exitcode}"}
    process.kill()
    process.join()
    return row | {"seconds": round(time.monotonic() - started, 1)}


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


def _cell(row: dict[str, Any], column: str) -> str:
    value = row.get(column, "")
    if not isinstance(value, float):
        return _escape(str(value))
    return f"{value:.1%}" if column == "top1" else f"{value:.1e}"


def to_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """A table of the supported models, then one of the others with their sentences."""
    good = [row for row in rows if row["outcome"] == SUPPORTED]
    lines = ["| " + " | ".join(COLUMNS.values()) + " |", "| --- " * len(COLUMNS) + "|"]
    lines += ["| " + " | ".join(_cell(row, name) for name in COLUMNS) + " |" for row in good]
    others = [row for row in rows if row["outcome"] != SUPPORTED]
    if others:
        lines += ["", "| model | outcome | sentence |", "| --- | --- | --- |"]
        for row in others:
            sentence = _escape(" ".join(row["sentence"].split()))
            lines.append(f"| {_cell(row, 'model')} | {row['outcome']} | {sentence} |")
    counts = Counter(row["outcome"] for row in rows)
    lines += ["", ", ".join(f"{count} {outcome}" for outcome, count in counts.items())]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; returns 1 when a model crashed, hung or differs from its original."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("models", type=Path, nargs="*", help="models, or folders of models")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path, help="write the table to this file, too")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds per model")
    options = parser.parse_args(arguments)
    rows = []
    for file in find_models(options.models):
        rows.append(check_apart(file, options.timeout))
        print(rows[-1]["model"], rows[-1]["outcome"], file=sys.stderr, flush=True)
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1) + "\n")
    if not rows:
        parser.error("no .onnx file found")
    table = to_markdown(rows)
    print(table, end="")
    if options.markdown:
        options.markdown.write_text(table)
    return int(any(row["outcome"] in ("crash", "timeout", "ParityError") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
