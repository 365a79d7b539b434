"""What ``minicache estimate`` prints."""

from __future__ import annotations

from minicache.exporter.estimation.compare import Comparison
from minicache.exporter.reporting.number_text import count, plain, size

COLUMNS = ("cache", "bytes", "to fp16", "read per step", "streams")


def estimate_lines(comparison: Comparison, batch: int, memory: int | None) -> list[str]:
    """A model's table; ``streams`` only where a memory is given."""
    sequences = "1 sequence" if batch == 1 else f"{batch} sequences"
    of = f" of {count(comparison.context)} tokens"
    lines = [comparison.name, f"  {comparison.description}", f"  {sequences}{of}"]
    if memory is not None:
        lines[-1] += f"; streams: sequences of as many that fit into {size(memory)} of caches"
    columns = COLUMNS if memory is not None else COLUMNS[:-1]
    rows = [list(columns)]
    for one in comparison.estimates:
        cells = [
            one.cache, size(one.resident), f"{plain(one.ratio)} x", size(one.read_per_step),
            count(one.streams),
        ]  # fmt: skip
        rows.append(cells[: len(columns)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(columns))]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines + [f"  ({note})" for note in comparison.notes]
