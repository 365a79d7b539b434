"""Exports beside all rival methods: one table, one figure, and who wins at equal size.

ORIGINAL is an exact-mode export. Exports in subspace mode count as ours; one in paper mode is a
rival, too. All options of ``bench_quality.py`` hold, whose protocol this is; without ``--method``
all methods are run that the model allows.

    python benchmarks/rivals/compare.py OUT_EXACT ours=OUT minicache=OUT_PAPER \
        --text prose=prose.txt --documents 4 --json rivals.json --svg rivals.svg
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # benchmarks import their neighbours

from bench_quality import parse, run
from configurations import BASELINES, PROTECTED

from benchmarks.rivals.figure import draw
from benchmarks.rivals.table import table, verdicts
from benchmarks.rivals.verdict import judge
from minicache.runtime.manifest import Manifest

SIZES = {"bits per coded element": "bits_per_element", "bytes of the whole context": "kv_bytes"}


def main() -> None:
    """Measures what is missing, then prints table and verdicts."""
    parser = argparse.ArgumentParser(
        description=__doc__ and __doc__.splitlines()[0],
        epilog="All other arguments are those of bench_quality.py.",
    )
    parser.add_argument(
        "--method", action="append", choices=BASELINES, metavar="NAME",
        help=f"repeatable, default all unprotected; of {', '.join(BASELINES)}",
    )  # fmt: skip
    parser.add_argument("--svg", type=Path, help="the figure")
    given, rest = parser.parse_known_args()
    methods = given.method or [name for name in BASELINES if not name.endswith(PROTECTED)]
    quality = parse([*rest, *(f"--baseline={name}" for name in methods)])
    result, rows = run(quality, skip=not given.method)

    modes = {name: Manifest.load(path).mode for name, path in quality.exports}
    ours = [name for name, mode in modes.items() if mode == "subspace"]
    print(f"\n{table(result)}")
    for title, size in SIZES.items():
        sizes = {name: row[size] for name, row in result["configurations"].items()}
        found = judge(rows, sizes, ours)
        result[f"verdicts_by_{size}"] = [
            {**dataclasses.asdict(verdict), "outcome": verdict.outcome} for verdict in found
        ]
        print(f"\nour best export of no more {title}, against each:\n{verdicts(found)}")
    if given.svg:
        draw(result, modes, given.svg)
    if quality.json:
        quality.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
