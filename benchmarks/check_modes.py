"""Do kernels and reference agree on real graphs, in every mode, and are their caches smaller?

    python benchmarks/check_modes.py FOLDER... --json modes.json

A folder is a model with a vocabulary of at least 256 tokens, or holds folders of models. Each is
exported in each mode with few exact tokens, calibrated on a made-up text of bytes, and runs a
ragged text of two rows in ONNX Runtime; the NumPy reference judges every attention node of every
call by its own inputs and state, with the tolerances of the tests (``tests/exporter``). A row
tells the layers of coded groups, the largest difference of an attention output relative to its
node's largest, the share of code components that are a step apart, and the resident bytes at a
capacity of 512 tokens next to those of exact mode. Random weights do: nothing is said of quality.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.check_models import find_models  # noqa: E402
from minicache.runtime.errors import MiniCacheError  # noqa: E402
from tests.exporter.judged_export import MODES, judge_export  # noqa: E402
from tests.exporter.subspace_workplace import Workplace  # noqa: E402

COLUMNS = {
    "model": "model",
    "mode": "mode",
    "coded": "coded layers",
    "worst": "attention",
    "differing": "codes",
    "share": "bytes",
}
AGREES = "agrees"


def judge(file: Path, mode: str) -> dict[str, Any]:
    """One row; ``outcome`` is ``agrees``, or the class of the error that ``sentence`` tells."""
    from minicache.plugins import ort_library_path

    with tempfile.TemporaryDirectory() as root:
        try:
            place = Workplace.make(Path(root) / "place", str(file.parent.resolve()))
            if file.name != "model.onnx":  # one of several in its folder
                (place.model / file.name).rename(place.model / "model.onnx")
            verdict = judge_export(place, mode, ort_library_path())
        except MiniCacheError as error:
            return {"outcome": type(error).__name__, "sentence": str(error)}
        except Exception as error:  # a difference, or a bug of ours: the table must go on
            place_of = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(place_of.filename).name}:{place_of.lineno}"
            outcome = "differs" if isinstance(error, AssertionError) else "crash"
            return {"outcome": outcome, "sentence": f"{type(error).__name__} at {where}: {error}"}
    share = verdict.resident / verdict.exact
    return {"outcome": AGREES, **vars(verdict), "share": share}


def judge_apart(file: Path, mode: str, timeout: float) -> dict[str, Any]:
    """``judge`` in a process of its own, which may crash or hang."""
    row: dict[str, Any] = {"model": file.parent.name, "mode": mode}
    if file.name != "model.onnx":
        row["model"] += f"/{file.stem}"
    command = [sys.executable, __file__, str(file), "--one", mode]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return row | {"outcome": "timeout", "sentence": f"no answer within {timeout:g} s"}
    if done.returncode:
        last = (done.stderr.strip() or "nothing printed").splitlines()[-1]
        return row | {"outcome": "crash", "sentence": f"exit code {done.returncode}: {last}"}
    return row | json.loads(done.stdout.splitlines()[-1])


def _cell(row: dict[str, Any], column: str) -> str:
    value = row.get(column, "")
    if column == "share":
        return f"{value:.1%}"
    if column == "coded":
        return ", ".join("+".join(map(str, group)) for group in value)
    return f"{value:.1e}" if isinstance(value, float) else str(value).replace("|", "\\|")


def to_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """A table of what agrees, then one of the rest with its sentences."""
    good = [row for row in rows if row["outcome"] == AGREES]
    lines = ["| " + " | ".join(COLUMNS.values()) + " |", "| --- " * len(COLUMNS) + "|"]
    lines += ["| " + " | ".join(_cell(row, name) for name in COLUMNS) + " |" for row in good]
    others = [row for row in rows if row["outcome"] != AGREES]
    if others:
        lines += ["", "| model | mode | outcome | sentence |", "| --- | --- | --- | --- |"]
    for row in others:
        sentence = " ".join(row["sentence"].split()).replace("|", "\\|")
        lines.append(f"| {row['model']} | {row['mode']} | {row['outcome']} | {sentence} |")
    counts = Counter(row["outcome"] for row in rows)
    lines += ["", ", ".join(f"{count} {outcome}" for outcome, count in counts.items())]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; returns 1 when kernels and reference differ, or one crashed or hung."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("models", type=Path, nargs="+", help="models, or folders of models")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path, help="write the table to this file, too")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds per export")
    parser.add_argument("--one", choices=MODES, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(judge(options.models[0], options.one)))
        return 0
    rows = []
    for file in find_models(options.models):
        for mode in options.modes:
            rows.append(judge_apart(file, mode, options.timeout))
            print(rows[-1]["model"], mode, rows[-1]["outcome"], file=sys.stderr, flush=True)
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1) + "\n")
    if not rows:
        parser.error("no .onnx file found")
    table = to_markdown(rows)
    print(table, end="")
    if options.markdown:
        options.markdown.write_text(table)
    return int(any(row["outcome"] in ("differs", "crash", "timeout") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
