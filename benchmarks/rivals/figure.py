"""The comparison as a figure: ratio against perplexity, and against KL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

# Settings of one method are one line: names without their bits, ratio or protection.
SETTING = re.compile(r"-(int\d+|[\d.]+x)(?=-|$)")
MARKERS = "osD^vP*Xh<>pd"
FLOOR = 1e-4  # losses below are drawn here


def method_of(name: str) -> str:
    """The method that a rival's name is a setting of."""
    return SETTING.sub("", name)


def draw(result: Mapping[str, Any], modes: Mapping[str, str], path: Path) -> None:
    """Writes an SVG file, the same bytes for the same numbers.

    Args:
        result: what ``bench_quality.run`` gives.
        modes: of the exports among its configurations; names that differ by their last digits
            only are one line, and those in subspace mode are drawn as ours.
        path: of the file.
    """
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for name, row in result["configurations"].items():
        line = name.rstrip("0123456789.-") if name in modes else method_of(name)
        lines.setdefault(line, []).append(row)
    ours = {name.rstrip("0123456789.-") for name, mode in modes.items() if mode == "subspace"}
    mpl.rcParams.update({"svg.hashsalt": "rivals", "svg.fonttype": "none", "font.size": 8})
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    colours = plt.get_cmap("tab20")
    for number, (name, rows) in enumerate(lines.items()):
        rows = sorted(rows, key=lambda row: -row["bits_per_element"])
        ratios = [16 / row["bits_per_element"] for row in rows]
        own = name in ours
        style = {
            "label": f"{name} (ours)" if own else name,
            "color": "black" if own else colours(number % 20),
            "linewidth": 2.2 if own else 1.0,
            "marker": MARKERS[number % len(MARKERS)],
            "markersize": 5,
        }
        extra = [max(row["ratio"]["value"] - 1, FLOOR) for row in rows]
        axes[0].plot(ratios, extra, **style)
        axes[1].plot(ratios, [max(row["kl"], FLOOR) for row in rows], **style)
    titles = (f"added perplexity, share (lowest: {FLOOR} or less)", "KL, nats per token")
    for axis, title in zip(axes, titles, strict=True):
        axis.set(xscale="log", yscale="log", xlabel="fp16 over coded tokens, times", ylabel=title)
        axis.set_xticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
        axis.minorticks_off()
        axis.grid(color="0.9")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right center", frameon=False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
