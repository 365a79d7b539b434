"""How long does one layer's attention take over a whole prompt, encoding included?

Exact mode beside GroupQueryAttention, coded formats beside exact mode. Every layer gets the whole
prompt in one call with an empty cache. Speeds count the products of queries with the keys that
they see, and of their weights with the values; the bound is a loop of FMA instructions on
registers, whose share is printed.

    python benchmarks/bench_prefill.py --tokens 1024 4096
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.cpu.asked import MOST_FOR_CODED_PREFILL, MOST_FOR_EXACT_PREFILL
from benchmarks.cpu.contestants import Contestant, Maker
from benchmarks.cpu.fma_peak import fma_peak
from benchmarks.cpu.formats import formats
from benchmarks.cpu.library import ISAS, Choice, Libraries
from benchmarks.cpu.ort_baselines import GQA_FP32
from benchmarks.cpu.rounds import interleaved, ratio
from benchmarks.cpu.step_shape import StepShape
from minicache.runtime.spread import Spread

EXACT = "exact fp32"


@dataclass(frozen=True)
class Prefill:
    """One row: milliseconds per layer, and how many times slower than ``beside``.

    ``share`` is of the FMA instructions that a thread can issue; None where they are not known.
    """

    name: str
    tokens: int
    ms: Spread
    gflop_per_s: float
    share: float | None
    beside: str
    slower: Spread | None
    asked: float | None


def prefill_rows(
    contestants: Sequence[Contestant],
    times: Mapping[str, Sequence[float]],
    shape: StepShape,
    peak: float | None = None,
) -> list[Prefill]:
    """Exact mode against GroupQueryAttention, the others against exact mode; ``peak`` in FLOP/s."""
    tokens = shape.totals[0]
    # Products of queries with visible keys, and of weights with values.
    flops = 2 * 2 * shape.batch * shape.heads * shape.head_size * tokens * (tokens + 1) / 2
    per_layer = {c.name: [t / c.layers.count for t in times[c.name]] for c in contestants}
    rows = []
    for c in contestants:
        beside = {GQA_FP32: "", EXACT: GQA_FP32}.get(c.form, EXACT)
        asked = {"": None, GQA_FP32: MOST_FOR_EXACT_PREFILL, EXACT: MOST_FOR_CODED_PREFILL}[beside]
        ms = Spread.of(per_layer[c.name]).scaled(1e3)
        slower = ratio(per_layer[c.name], per_layer[beside]) if beside in per_layer else None
        speed = flops / ms.median * 1e3
        share = speed / peak if peak else None
        rows.append(Prefill(c.name, tokens, ms, speed / 1e9, share, beside, slower, asked))
    return rows


def main(words: Sequence[str] | None = None) -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--formats", nargs="+", choices=list(formats()),
                        default=["slerp 8 bit", "subspace G=2", "subspace G=3"])  # fmt: skip
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-size", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1, help="more than 1: wall time")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--math", nargs="+", help="of codes; default: all that the library has")
    parser.add_argument("--isa", default="", choices=ISAS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(words)
    known = formats(given.kv_heads, given.head_size)
    found: list[Prefill] = []
    clock = time.thread_time if given.threads == 1 else time.perf_counter
    with tempfile.TemporaryDirectory() as folder:
        libraries = Libraries(Path(folder))
        isa = libraries.isa(Choice(given.isa))
        print(f"ours on {isa}, {given.threads} thread(s), load {os.getloadavg()[0]:.1f}")
        # A thread's; with more of them wall time counts, which others' load makes meaningless.
        peak = fma_peak(isa, Path(folder)) if given.threads == 1 else None
        print(f"FMA peak: {peak / 1e9:.1f} GFLOP/s\n" if peak else "FMA peak: not known\n")
        print(
            "| contestant | tokens | ms per layer | GFLOP/s | of peak | times slower than | asked |"
        )
        print("|---|---|---|---|---|---|---|")
        maker = Maker(libraries, given.threads, spread=0, least=1)
        maths = [Choice(given.isa, math) for math in given.math or libraries.maths()]
        for tokens in given.tokens:
            shape = StepShape((tokens,), tokens, given.heads, given.kv_heads, given.head_size)
            contestants = [
                maker.baseline(GQA_FP32, shape),
                maker.ours(known[EXACT], shape, maths[0]),
            ]
            # With an instruction set asked for, the name tells it; rows are matched without.
            contestants[1] = replace(contestants[1], name=EXACT)
            contestants += [maker.ours(known[n], shape, m) for n in given.formats for m in maths]
            steps = {each.name: each.layers.step for each in contestants}
            times = interleaved(steps, given.rounds, clock, seconds=0)
            for row in prefill_rows(contestants, times, shape, peak):
                found.append(row)
                beside = ""
                if row.slower:
                    low, high = row.slower.p25, row.slower.p75
                    beside = f"{row.slower.median:.2f} ({low:.2f}-{high:.2f}) x {row.beside}"
                ms = f"{row.ms.median:.1f} ({row.ms.p25:.1f}-{row.ms.p75:.1f})"
                asked = f"<= {row.asked}" if row.asked else ""
                share = "" if row.share is None else f"{row.share:.0%}"
                cells = (row.name, tokens, ms, f"{row.gflop_per_s:.1f}", share, beside, asked)
                print(f"| {' | '.join(map(str, cells))} |")
    if given.json:
        rows = [asdict(row) for row in found]
        report = {"isa": isa, "threads": given.threads, "fma_peak": peak, "rows": rows}
        given.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
