"""From times to a table: what each contestant takes, and its ratio to every baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.cpu.asked import MOST_FOR_CASES, asked
from benchmarks.cpu.contestants import Contestant
from benchmarks.cpu.ort_baselines import BASELINES
from benchmarks.cpu.rounds import ratio
from minicache.runtime.spread import Spread


@dataclass(frozen=True)
class Row:
    """One contestant's result.

    Attributes:
        ms: of one layer's step.
        ns_per_token: of one layer's step, cached token and batch row.
        gb_per_s: bytes that must move, by that time.
        faster: ratios to the baselines of the run, by name.
        asked: what they should be at least.
        slower: time per cached token, as a multiple of the plain case.
    """

    name: str
    ms: Spread
    ns_per_token: float
    megabytes: float
    gb_per_s: float
    faster: Mapping[str, Spread] = field(default_factory=dict)
    asked: Mapping[str, float] = field(default_factory=dict)
    slower: Spread | None = None


def compared(
    contestants: Sequence[Contestant], times: Mapping[str, Sequence[float]], plain: str = ""
) -> list[Row]:
    """A row per contestant.

    Args:
        contestants: that were timed.
        times: seconds of all their layers, per round.
        plain: the contestant whose time per token the others are compared with; empty: none.
    """
    per_layer = {c.name: [t / c.layers.count for t in times[c.name]] for c in contestants}
    per_token = {c.name: [t / c.tokens for t in per_layer[c.name]] for c in contestants}
    rows = []
    for c in contestants:
        ms = Spread.of(per_layer[c.name]).scaled(1e3)
        ours = c.form not in BASELINES
        bases = [b for b in contestants if b.form in BASELINES] if ours else []
        bounds = {b.name: asked(c.form, c.choice, b.name) for b in bases}
        rows.append(
            Row(
                c.name, ms, 1e6 * ms.median / c.tokens, c.traffic.total / 1e6,
                c.traffic.total / ms.median / 1e6,
                {b.name: ratio(per_layer[b.name], per_layer[c.name]) for b in bases},
                {name: bound for name, bound in bounds.items() if bound is not None},
                ratio(per_token[c.name], per_token[plain]) if plain else None,
            )
        )  # fmt: skip
    return rows


def print_rows(title: str, rows: Sequence[Row]) -> None:
    """A table in Markdown: medians, quartiles in brackets, and what was asked for."""
    bases = [name for row in rows for name in row.faster]
    bases = list(dict.fromkeys(bases))
    plain = any(row.slower for row in rows)
    columns = ["", "ms per layer", "MB", "GB/s", *(f"x {name}" for name in bases)]
    columns += [f"x plain (asked <= {MOST_FOR_CASES})"] if plain else []
    print(f"\n{title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        cells = [row.name, _text(row.ms, 3), f"{row.megabytes:.1f}", f"{row.gb_per_s:.1f}"]
        for name in bases:
            cell = _text(row.faster[name], 2) if name in row.faster else ""
            cells.append(cell + (f", asked {row.asked[name]:g}" if name in row.asked else ""))
        if plain:
            cells.append(_text(row.slower, 2) if row.slower else "")
        print(f"| {' | '.join(cells)} |", flush=True)


def _text(spread: Spread, digits: int) -> str:
    low, middle, high = (f"{x:.{digits}f}" for x in (spread.p25, spread.median, spread.p75))
    return f"{middle} ({low}-{high})"
