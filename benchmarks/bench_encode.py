"""What does it take to encode one token: keys and values of all kv heads, per group?

The same nodes run one token before the first code is due, and at it: the difference is the
encoding. Two figures: with the encoders in the processor's cache (two groups take turns), and with
so many groups that encoders come from memory, as in a model whose weights are read between.

    python benchmarks/bench_encode.py
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.cpu.asked import MOST_MICROSECONDS
from benchmarks.cpu.formats import Format, formats
from benchmarks.cpu.layer_chain import Layers
from benchmarks.cpu.library import ISAS, Choice, Libraries
from benchmarks.cpu.our_layers import our_layers
from benchmarks.cpu.rounds import interleaved
from benchmarks.cpu.step_shape import StepShape
from benchmarks.cpu.traffic import our_traffic
from minicache.runtime.spread import Spread

CACHED = 2  # groups whose encoders take turns


@dataclass(frozen=True)
class Encoding:
    """One row: microseconds per group; ``asked`` is for encoders in the cache."""

    name: str
    places: str
    table_bytes: int
    us: Spread
    asked: float | None


def first_code(form: Format, shape: StepShape) -> tuple[StepShape, StepShape]:
    """The call before the first that encodes a token, and that call."""
    protected = form.attributes["sinks"] + form.attributes["window"]
    room = -(-(protected + 1) // 16) * 16
    before, at = (replace(shape, totals=(n,), capacity=room) for n in (protected, protected + 1))
    return before, at


def differences(
    times: Mapping[str, Sequence[float]], pairs: Mapping[str, tuple[str, str]], groups: int
) -> dict[str, Spread]:
    """Microseconds per group between the two runs of each pair, within each round."""
    found = {}
    for name, (without, with_code) in pairs.items():
        both = zip(times[without], times[with_code], strict=True)
        found[name] = Spread.of([1e6 * (b - a) / groups for a, b in both])
    return found


def measure(
    form: Format, shape: StepShape, libraries: Libraries, given: argparse.Namespace
) -> list[Encoding]:
    """A format with encoders in the cache and in memory."""
    tables = our_traffic(form, shape).tables * form.group / 2  # of one group, the encoders
    many = max(CACHED, math.ceil((given.spread << 20) / max(tables, 1)))
    places = {"cache": CACHED, "memory": many if form.attributes.get("has_decoder") else CACHED}
    rows = []
    for place, groups in places.items():
        runs: dict[str, Layers] = {}
        with libraries.chosen(Choice(given.isa)) as library:
            for name, each in zip(("before", "at"), first_code(form, shape), strict=True):
                runs[name] = our_layers(form, each, groups, 1, library)
        steps = {name: layers.step for name, layers in runs.items()}
        times = interleaved(steps, given.rounds, seconds=given.seconds)
        us = differences(times, {"one token": ("before", "at")}, groups)["one token"]
        asked = MOST_MICROSECONDS.get(form.name) if place == "cache" else None
        rows.append(Encoding(form.name, place, int(tables), us, asked))
        if not form.attributes.get("has_decoder"):
            break
    return rows


def main(words: Sequence[str] | None = None) -> None:
    """Prints the table."""
    known = formats()
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--formats", nargs="+", choices=list(known),
                        default=["slerp 8 bit", "subspace G=2", "subspace G=3"])  # fmt: skip
    parser.add_argument("--dtype", default="float32", choices=("float32", "float16"))
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.02, help="of a turn, roughly")
    parser.add_argument("--spread", type=int, default=64, help="MiB of encoders in memory")
    parser.add_argument("--isa", default="", choices=ISAS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(words)
    shape = StepShape((1,), 1, 4 * given.kv_heads, given.kv_heads, given.head_size)
    known = formats(given.kv_heads, given.head_size)
    rows: list[Encoding] = []
    with tempfile.TemporaryDirectory() as folder:
        libraries = Libraries(Path(folder))
        isa = libraries.isa(Choice(given.isa))
        print(f"encoding of one token on {isa}, {given.dtype}, load {os.getloadavg()[0]:.1f}\n")
        print("| format | encoders in | their MB | us per group | asked, at most |")
        print("|---|---|---|---|---|")
        for name in given.formats:
            for row in measure(replace(known[name], dtype=given.dtype), shape, libraries, given):
                rows.append(row)
                us = f"{row.us.median:.1f} ({row.us.p25:.1f}-{row.us.p75:.1f})"
                cells = row.name, row.places, f"{row.table_bytes / 1e6:.2f}", us, row.asked or ""
                print(f"| {' | '.join(str(cell) for cell in cells)} |", flush=True)
    if given.json:
        found = {"isa": isa, "dtype": given.dtype, "rows": [asdict(row) for row in rows]}
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
