"""Plots of a similarity profile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from minicache.exporter.profiling.profile_result import SimilarityProfile

MEASURES = (
    ("cosine", "cosine", "o"),
    ("aligned_cosine", "cosine, heads aligned", "s"),
    ("cka", "linear CKA", "^"),
)


def plot_similarity(profile: SimilarityProfile, files: Sequence[Path]) -> None:
    """Draws similarity over depth, keys beside values; the suffix of a file chooses its format."""
    # Not pyplot: it would look for a display and keep the figure alive.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 2, sharey=True)
    lower = [pair.lower for pair in profile.pairs]
    for ax, kind, title in zip(axes, ("key", "value"), ("Keys, after RoPE", "Values"), strict=True):
        for field, label, marker in MEASURES:
            by_head = [getattr(getattr(pair, kind), field) for pair in profile.pairs]
            means = [float(np.mean(heads)) for heads in by_head]
            ax.plot(lower, means, marker=marker, markersize=3.5, linewidth=1.2, label=label)
            low, high = ([limit(heads) for heads in by_head] for limit in (min, max))
            ax.fill_between(lower, low, high, alpha=0.15, linewidth=0)
        ax.set_title(title, fontsize=10)
        ax.set_xlabel("lower layer of the pair")
        ax.grid(alpha=0.3)
        ax.set_ylim(min(-0.1, ax.get_ylim()[0]), 1.02)
    axes[0].set_ylabel("similarity of adjacent layers")
    axes[1].legend(fontsize=8)
    for file in files:
        figure.savefig(file, dpi=150)
