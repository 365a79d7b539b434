"""How close does a decode step come to what memory allows, and how does its cost grow?

- bandwidth: the fastest plain reading of a large buffer by one thread, measured in the same rounds
- bytes: what a step must read of each format; its time; the share of the bandwidth that it reached
- tokens: a straight line through the cost at several T, and how far the cost lies from it
- memory: resident bytes before and after many decode steps at a long context

    python benchmarks/bench_roofline.py --json roofline.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.cpu.asked import LEAST_BANDWIDTH_SHARE
from benchmarks.cpu.contestants import Contestant, Maker
from benchmarks.cpu.formats import MAIN, Format, formats
from benchmarks.cpu.library import ISAS, Choice, Libraries
from benchmarks.cpu.ort_baselines import GQA_FP32, GQA_INT8
from benchmarks.cpu.our_layers import our_layers
from benchmarks.cpu.rounds import Run, interleaved
from benchmarks.cpu.step_shape import StepShape
from benchmarks.process_memory import resident_bytes
from minicache.runtime.spread import Spread

WARM_UP = 8  # steps before memory is looked at


def readers(size: int) -> dict[str, Run]:
    """Plain readings of a buffer of ``size`` bytes; the fastest is the bandwidth."""
    buffer = np.ones(size // 4, np.float32)
    words = buffer.view(np.int64)
    return {
        "dot": lambda: np.dot(buffer, buffer),
        "sum": lambda: words.sum(),
        "max": lambda: words.max(),
    }


@dataclass(frozen=True)
class Share:
    """One contestant at one T."""

    name: str
    tokens: int
    cache_mb: float
    tables_mb: float
    ms: Spread
    gb_per_s: float
    share: Spread
    asked: float | None


def shares(
    contestants: Sequence[Contestant], times: Mapping[str, Sequence[float]],
    bandwidth: Sequence[float],
) -> list[Share]:  # fmt: skip
    """Shares of ``bandwidth``, which is in bytes per second and per round."""
    rows = []
    for c in contestants:
        per_layer = [t / c.layers.count for t in times[c.name]]
        size = c.traffic.total
        share = [size / t / b for t, b in zip(per_layer, bandwidth, strict=True)]
        ms = Spread.of(per_layer).scaled(1e3)
        rows.append(
            Share(
                c.name, c.tokens, c.traffic.cache / 1e6, c.traffic.tables / 1e6, ms,
                size / ms.median / 1e6, Spread.of(share), LEAST_BANDWIDTH_SHARE.get(c.form),
            )
        )  # fmt: skip
    return rows


@dataclass(frozen=True)
class Line:
    """Cost as ``fixed_us + ns_per_token * T``; ``worst``: the largest relative distance from it."""

    name: str
    fixed_us: float
    ns_per_token: float
    worst: float


def fit(name: str, tokens: Sequence[int], seconds: Sequence[float]) -> Line:
    """The line with the least squares of relative distances."""
    t, y = np.asarray(tokens, float), np.asarray(seconds, float)
    matrix = np.stack([1 / y, t / y], axis=1)
    (fixed, slope), *_ = np.linalg.lstsq(matrix, np.ones_like(y), rcond=None)
    worst = float(np.abs((fixed + slope * t) / y - 1).max())
    return Line(name, 1e6 * float(fixed), 1e9 * float(slope), worst)


def memory_growth(form: Format, shape: StepShape, steps: int, library: Path) -> int:
    """Bytes that the process grows by over ``steps`` decode steps of growing length."""
    layers = our_layers(form, shape, 2, 1, library)
    lengths = [layers.arrays[f"{name}_lengths"] for name in ("past", "total")]
    before = 0
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            before = resident_bytes()
        layers.step()
        for array in lengths:
            array += 1
    return resident_bytes() - before


class Roofline:
    """Runs the parts."""

    def __init__(self, given: argparse.Namespace, libraries: Libraries) -> None:
        self.given, self.libraries = given, libraries
        self.formats = {n: formats(given.kv_heads, given.head_size)[n] for n in given.formats}
        self.maker = Maker(libraries, 1, given.spread << 20)
        self.choices = [Choice(given.isa, math) for math in given.math or libraries.maths()]

    def shape(self, total: int, capacity: int = 0) -> StepShape:
        """One row at the heads of the command line."""
        g = self.given
        return StepShape((total,), 1, 4 * g.kv_heads, g.kv_heads, g.head_size, capacity)

    def contestants(self, tokens: int) -> list[Contestant]:
        """Baselines and formats, at all maths."""
        shape = self.shape(tokens)
        made = [self.maker.baseline(name, shape) for name in (GQA_FP32, GQA_INT8)]
        for form in self.formats.values():
            choices = self.choices if form.coded else self.choices[:1]
            made += [self.maker.ours(form, shape, choice) for choice in choices]
        return made

    def cost(self) -> tuple[list[Share], list[Line], dict[str, Any]]:
        """Shares at every T, and the lines through them."""
        size = self.given.buffer << 20
        reading = readers(size)
        rows: list[Share] = []
        speeds: list[float] = []
        for tokens in self.given.tokens:
            contestants = self.contestants(tokens)
            steps = {c.name: c.layers.step for c in contestants}
            both = interleaved(reading | steps, self.given.rounds, seconds=self.given.seconds)
            fastest = [min(each) for each in zip(*(both[n] for n in reading), strict=True)]
            bandwidth = [size / seconds for seconds in fastest]
            speeds += bandwidth
            found = shares(contestants, both, bandwidth)
            print_shares(found, Spread.of(bandwidth))
            rows += found
        lines = []
        for name in dict.fromkeys(row.name for row in rows):
            mine = [row for row in rows if row.name == name]
            if len(mine) > 1:
                ms = [row.ms.median for row in mine]
                lines.append(fit(name, [row.tokens for row in mine], [x / 1e3 for x in ms]))
        return rows, lines, {"read_gb_per_s": asdict(Spread.of(speeds).scaled(1e-9))}

    def memory(self) -> dict[str, int]:
        """Growth of every format."""
        total, steps = self.given.memory_tokens, self.given.memory_steps
        shape = self.shape(total - steps - WARM_UP, -(-total // 16) * 16)
        with self.libraries.chosen(self.choices[0]) as library:
            return {
                name: memory_growth(form, shape, steps, library)
                for name, form in self.formats.items()
            }


def print_shares(rows: Sequence[Share], bandwidth: Spread) -> None:
    """The table of one T."""
    read = f"{bandwidth.median / 1e9:.1f} ({bandwidth.p25 / 1e9:.1f}-{bandwidth.p75 / 1e9:.1f})"
    print(f"\nT = {rows[0].tokens}; one thread reads {read} GB/s\n")
    print("| | cache MB | tables MB | ms per layer | GB/s | share of the bandwidth | asked |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        s = row.share
        share = f"{s.median:.0%} ({s.p25:.0%}-{s.p75:.0%})"
        cells = [row.name, f"{row.cache_mb:.2f}", f"{row.tables_mb:.2f}", f"{row.ms.median:.3f}"]
        cells += [f"{row.gb_per_s:.1f}", share, f"{row.asked:.0%}" if row.asked else ""]
        print(f"| {' | '.join(cells)} |", flush=True)


def main(words: Sequence[str] | None = None) -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    tokens = [1024, 2048, 4096, 8192, 16384]
    parser.add_argument("--tokens", type=int, nargs="+", default=tokens, help="T")
    parser.add_argument("--kv-heads", type=int, default=8, help="with 4 query heads each")
    parser.add_argument("--head-size", type=int, default=128)
    parser.add_argument("--formats", nargs="+", default=list(MAIN), choices=list(formats()))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.05, help="of a turn, roughly")
    parser.add_argument("--spread", type=int, default=64, help="MiB that a step reads at least")
    parser.add_argument("--buffer", type=int, default=256, help="MiB that bandwidth is read from")
    parser.add_argument("--memory-tokens", type=int, default=16384)
    parser.add_argument("--memory-steps", type=int, default=300)
    parser.add_argument("--math", nargs="+", help="of codes; default: all that the library has")
    parser.add_argument("--isa", default="", choices=ISAS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        libraries = Libraries(Path(folder))
        isa = libraries.isa(Choice(given.isa))
        print(f"ours on {isa}, 1 thread, load {os.getloadavg()[0]:.1f}")
        roofline = Roofline(given, libraries)
        rows, lines, found = roofline.cost()
        print("\n| | fixed us | ns per token | largest distance |\n|---|---|---|---|")
        for line in lines:
            cells = f"{line.fixed_us:.0f}", f"{line.ns_per_token:.1f}", f"{line.worst:.1%}"
            print(f"| {line.name} | {' | '.join(cells)} |")
        growth = roofline.memory()
        print(f"\nresident memory over {given.memory_steps} steps up to T = {given.memory_tokens}")
        for name, size in growth.items():
            print(f"{name:24} {size:+,} bytes")
    if given.json:
        found |= {"isa": isa, "shares": [asdict(r) for r in rows]}
        found |= {"lines": [asdict(line) for line in lines], "rss_growth_bytes": growth}
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
