"""How fast is one layer's attention in a decode step, against ONNX Runtime's own?

A step appends one token to every layer's cache and attends to all of it; ours also encodes the
token that leaves the window. Each contestant is a graph of as many layers as fill several times the
processor's cache, all bound in place. They take turns in rounds; ratios are of the same round, in
CPU time of the one thread. "asked" is what is to be reached, on a machine with AVX-512.

    python benchmarks/bench_attention.py --tokens 4096 16384
    python benchmarks/bench_attention.py --tables cases batches groups --tokens 4096
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.cpu.contestants import Contestant, Maker
from benchmarks.cpu.formats import EXACT16, MAIN, SLERP8, Format, formats
from benchmarks.cpu.library import ISAS, Choice, Libraries
from benchmarks.cpu.ort_baselines import BASELINES, GQA_FP32, GQA_INT8
from benchmarks.cpu.report import Row, compared, print_rows
from benchmarks.cpu.rounds import interleaved
from benchmarks.cpu.step_shape import StepShape

TABLES = ("main", "cases", "batches", "groups")


class Bench:
    """Runs the tables that were asked for."""

    def __init__(self, given: argparse.Namespace, libraries: Libraries) -> None:
        self.given = given
        self.formats = formats(given.kv_heads, given.head_size)
        self.maker = Maker(libraries, given.threads, given.spread << 20)
        self.choices = [Choice(given.isa, math) for math in given.math or libraries.maths()]

    def shape(self, totals: Iterable[int]) -> StepShape:
        """The heads of the command line."""
        g = self.given
        return StepShape(tuple(totals), 1, g.heads, g.kv_heads, g.head_size)

    def ours(self, form: Format, shape: StepShape, every: bool = True) -> list[Contestant]:
        """A format at every choice of maths, or at the first."""
        choices = self.choices if form.coded and every else self.choices[:1]
        return [self.maker.ours(form, shape, choice) for choice in choices]

    def run(self, title: str, contestants: Sequence[Contestant], plain: str = "") -> list[Row]:
        """Times contestants and prints their table."""
        clock = time.thread_time if self.given.threads == 1 else time.perf_counter
        turns = {each.name: each.layers.step for each in contestants}
        times = interleaved(turns, self.given.rounds, clock, self.given.seconds)
        rows = compared(contestants, times, plain)
        print_rows(title, rows)
        return rows

    def main(self, tokens: int) -> list[Row]:
        """Every format beside every baseline."""
        shape = self.shape([tokens])
        contestants = [self.maker.baseline(name, shape) for name in self.given.baselines]
        for name in self.given.formats:
            contestants += self.ours(self.formats[name], shape)
        return self.run(f"T = {tokens}", contestants)

    def cases(self, tokens: int) -> list[Row]:
        """What a real batch does to a cache, beside the plain case of the same size."""
        rows: list[Row] = []
        names = [n for n in (EXACT16, SLERP8, "subspace G=2") if n in self.given.formats]
        shares = (1.6, 1.2, 0.8, 0.4)
        plain, ragged = (self.shape(int(tokens * s) for s in each) for each in ((1,) * 4, shares))
        # 32 tokens on, the exact ring of 128 slots is read in two pieces.
        whole, wrapped = self.shape([tokens]), self.shape([tokens + 32])
        for name in names:
            form = self.formats[name]
            pairs = {
                "4 rows": (form, replace(plain, capacity=ragged.capacity)),
                "ragged": (form, ragged),
                "plain": (form, whole),
            }
            if form.coded:
                pairs["ring wrap"] = (form, wrapped)
            else:
                window = {"local_window_size": tokens, "ring_slots": tokens + 64}
                sliding = replace(form, attributes={**form.attributes, **window})
                pairs["ring wrap"] = (sliding, self.shape([tokens + tokens // 2]))
            if form.attributes.get("mode") == "slerp":
                more = {"retention": "threshold"}
                kept = replace(form, attributes={**form.attributes, **more}, retained=0.05)
                pairs["retained 5 %"] = (kept, whole)
            made = {case: self.ours(*pair, every=False)[0] for case, pair in pairs.items()}
            found = [replace(each, name=f"{name}, {case}") for case, each in made.items()]
            for base, members in (("4 rows", found[:2]), ("plain", found[2:])):
                rows += self.run(f"T = {tokens}, {name}, beside {base}", members, members[0].name)
        return rows

    def batches(self, tokens: int) -> list[Row]:
        """Several rows."""
        rows: list[Row] = []
        names = [n for n in (EXACT16, SLERP8, "subspace G=2") if n in self.given.formats]
        for batch in self.given.batches:
            shape = self.shape([tokens] * batch)
            contestants = [self.maker.baseline(name, shape) for name in (GQA_FP32, GQA_INT8)]
            contestants += [c for n in names for c in self.ours(self.formats[n], shape)]
            rows += self.run(f"T = {tokens}, B = {batch}", contestants)
        return rows

    def groups(self, tokens: int) -> list[Row]:
        """Groups of one to four layers at the same bits per element."""
        shape = self.shape([tokens])
        contestants = [self.maker.baseline(name, shape) for name in (GQA_FP32, GQA_INT8)]
        for name, form in self.formats.items():
            if name.startswith(("subspace G=", SLERP8)) and "joint" not in name:
                contestants += self.ours(form, shape)
        return self.run(f"T = {tokens}, layers of a group", contestants)


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 16384], help="T")
    parser.add_argument("--heads", type=int, default=32, help="query heads H")
    parser.add_argument("--kv-heads", type=int, default=8, help="kv heads Hk")
    parser.add_argument("--head-size", type=int, default=128, help="D")
    parser.add_argument("--threads", type=int, default=1, help="more than 1: wall time")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.05, help="of a turn, roughly")
    parser.add_argument("--spread", type=int, default=64, help="MiB that a step reads at least")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=["main"])
    parser.add_argument("--formats", nargs="+", default=list(MAIN), choices=list(formats()))
    parser.add_argument("--baselines", nargs="*", default=list(BASELINES), choices=list(BASELINES))
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8], help="B")
    parser.add_argument("--math", nargs="+", help="of codes; default: all that the library has")
    parser.add_argument("--isa", default="", choices=ISAS)
    parser.add_argument("--json", type=Path)
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """Prints the tables."""
    given = parse(words)
    with tempfile.TemporaryDirectory() as folder:
        libraries = Libraries(Path(folder))
        isa = libraries.isa(Choice(given.isa))
        found: dict[str, Any] = {"isa": isa, "threads": given.threads, "rounds": given.rounds}
        print(f"ours on {isa}, {given.threads} thread(s), load {os.getloadavg()[0]:.1f}")
        bench = Bench(given, libraries)
        for table in given.tables:
            run: Callable[[int], list[Row]] = getattr(bench, table)
            rows = [{"tokens": t, **asdict(row)} for t in given.tokens for row in run(t)]
            found[table] = rows
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
