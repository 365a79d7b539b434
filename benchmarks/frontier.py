"""Which configuration is best at each total ratio? Joins what two benchmarks measured.

The ratio is of resident bytes: fp16 cache of the context over everything that a configuration holds
at its end, sinks, windows and ring included. Needles are counted over all contexts of their run.

    python benchmarks/frontier.py quality.json needle.json --at 9 16 32
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HEAD = (
    "| cache | resident MB | ratio | perplexity ratio | KL, nats | top-1 | needles |\n"
    "| --- | --- | --- | --- | --- | --- | --- |"
)


@dataclass(frozen=True)
class Point:
    """One configuration.

    Attributes:
        name: as in both files.
        bytes: resident at the end of the context.
        ratio: of the fp16 cache to them.
        perplexity: ratio to the original.
        interval: 95 % of it; None with one document.
        kl: nats per token to the original.
        top1: agreement with the original.
        found: needles found, of ``asked``.
        asked: needles that the original finds; 0: not measured.
    """

    name: str
    bytes: int
    ratio: float
    perplexity: float
    interval: tuple[float, float] | None
    kl: float
    top1: float
    found: int
    asked: int

    def line(self) -> str:
        """The point as a row of a Markdown table."""
        interval = self.interval and f" ({self.interval[0]:.4f} to {self.interval[1]:.4f})"
        return (
            f"| {self.name} | {self.bytes / 1e6:.2f} | {self.ratio:.1f} × | "
            f"{self.perplexity:.4f}{interval or ''} | {self.kl:.4f} | {self.top1:.1%} | "
            f"{f'{self.found} of {self.asked}' if self.asked else '-'} |"
        )


def points(quality: Mapping[str, Any], needles: Mapping[str, Any]) -> list[Point]:
    """The configurations of both runs, the smallest ratio first.

    Args:
        quality: what ``bench_quality.py --json`` wrote.
        needles: what ``bench_needle.py --json`` wrote.

    Raises:
        ValueError: needles were asked of a configuration whose quality was not measured.
    """
    asked = {name for name in needles["configurations"] if name != "original"}
    if lacking := sorted(asked - set(quality["configurations"])):
        raise ValueError(f"{', '.join(lacking)}: asked for needles, but not in the quality file")
    none: dict[str, dict[str, int]] = {"exact": {}, "cases": {}}
    made = []
    for name, row in quality["configurations"].items():
        needle, ratio = needles["configurations"].get(name, none), row["ratio"]
        low, high = ratio["low"], ratio["high"]
        made.append(
            Point(
                name,
                row["kv_bytes"],
                row["compression_ratio"],
                ratio["value"],
                None if low is None or high is None else (low, high),
                row["kl"],
                row["top1"],
                sum(needle["exact"].values()),
                sum(needle["cases"].values()),
            )
        )
    return sorted(made, key=lambda point: point.ratio)


def best(found: Sequence[Point], ratio: float, most_lost: int | None) -> Point | None:
    """The lowest perplexity at ``ratio`` or more.

    Args:
        found: to choose from.
        ratio: of fp16 to resident bytes, at least.
        most_lost: needles that it loses at most, if they were measured; None: they do not count.
    """
    large = [point for point in found if point.ratio >= ratio]
    if most_lost is not None:
        large = [p for p in large if p.asked and p.asked - p.found <= most_lost]
    return min(large, key=lambda point: point.perplexity, default=None)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table, and the best configuration of each ratio."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("quality", type=Path, help="what bench_quality.py --json wrote")
    parser.add_argument("needle", type=Path, help="what bench_needle.py --json wrote")
    parser.add_argument("--at", type=float, nargs="+", default=[9, 16, 32], metavar="RATIO")
    parser.add_argument("--most-lost", type=int, default=2, help="needles")
    given = parser.parse_args(arguments)
    quality, needles = (json.loads(path.read_text()) for path in (given.quality, given.needle))
    try:
        found = points(quality, needles)
    except ValueError as error:
        raise SystemExit(str(error)) from error
    print(f"{quality['context']} tokens, {quality['prefill']} of them as a prompt\n{HEAD}")
    print("\n".join(point.line() for point in found))
    for ratio in given.at:
        lowest, reading = best(found, ratio, None), best(found, ratio, given.most_lost)
        print(
            f"{ratio:g} x or more: lowest perplexity {_named(lowest)}; of those that lose "
            f"{given.most_lost} needles or fewer {_named(reading)}"
        )


def _named(point: Point | None) -> str:
    return f"{point.name} (x {point.perplexity:.4f})" if point else "none"


if __name__ == "__main__":
    main()
