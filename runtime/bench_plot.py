"""The trade-off of memory and latency in one picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from minicache.runtime.errors import OutputError, SessionError

if TYPE_CHECKING:
    from minicache.runtime.bench import BenchResult

SUFFIXES = (".png", ".svg")
MARKERS = ("o", "s", "^")


def check_plot_file(file: Path) -> None:
    """Checks that a plot can be written, before anything is measured for it.

    Raises:
        SessionError: neither SVG nor PNG.
        OutputError: its folder does not exist.
    """
    if file.suffix.lower() not in SUFFIXES:
        raise SessionError(f"the plot is {str(file)!r}; name it .svg or .png")
    if not file.parent.is_dir():
        raise OutputError(f"{str(file.parent)!r} is no folder; make it, or put the plot elsewhere")


def plot_bench(result: BenchResult, file: Path) -> None:
    """Draws time per token over KV bytes, one line per contestant; lower left is better.

    Raises:
        OutputError: the disk refuses.
    """
    # Not pyplot: it would look for a display and keep the figure alive.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    ax = figure.subplots()
    names = list(dict.fromkeys(row.name for row in result.rows))
    for name, marker in zip(names, MARKERS, strict=False):
        rows = sorted((row for row in result.rows if row.name == name), key=lambda r: r.context)
        across = [row.kv_bytes / 1e6 for row in rows]
        up = [1000 * row.step_seconds.median for row in rows]
        low = [1000 * (row.step_seconds.median - row.step_seconds.p25) for row in rows]
        high = [1000 * (row.step_seconds.p75 - row.step_seconds.median) for row in rows]
        ax.errorbar(across, up, (low, high), marker=marker, linewidth=1.2, capsize=2, label=name)
        for row, x, y in zip(rows, across, up, strict=True):
            ax.annotate(
                f"{row.context}", (x, y), textcoords="offset points", xytext=(6, -11), fontsize=8
            )
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.margins(x=0.12)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("KV cache of one sequence, MB")
    ax.set_ylabel("ms per decoded token (median, quartiles)")
    ax.set_title("Numbers are tokens in the cache; lower left is better", fontsize=9)
    ax.grid(alpha=0.3, which="both")
    ax.legend(fontsize=8)
    try:
        figure.savefig(file, dpi=150)
    except OSError as error:
        raise OutputError(
            f"{str(file)!r} cannot be written ({error.strerror}); put the plot elsewhere"
        ) from error
