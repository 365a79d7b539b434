"""Prints a similarity profile: one row per pair of layers, then one per way of coding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from minicache.exporter.profiling.profile_result import KindSimilarity, SimilarityProfile

ALIKE = 0.9  # mean cosine; even here a vector restored halfway is off by 22 %


def print_profile(profile: SimilarityProfile, console: Console) -> None:
    """Prints both tables and the conclusion."""
    console.print(_pair_table(profile))
    console.print(_loss_table(profile))
    console.print(conclusion(profile), highlight=False)


def conclusion(profile: SimilarityProfile) -> str:
    """Says in one sentence whether adjacent layers are alike enough to merge."""
    cosine = float(np.mean([np.mean(kind.cosine) for kind in _kinds(profile)]))
    error = float(np.mean([kind.merge_errors[16] for kind in _kinds(profile)]))
    verdict = "alike" if cosine >= ALIKE else "not alike"
    return (
        f"Adjacent layers are {verdict} (mean cosine {cosine:.2f}): sharing one direction, as "
        f"--mode paper does, changes the cached vectors by {error:.0%} on average."
    )


def _kinds(profile: SimilarityProfile) -> Iterator[KindSimilarity]:
    for pair in profile.pairs:
        yield pair.key
        yield pair.value


def _pair_table(profile: SimilarityProfile) -> Table:
    table = Table(
        title=f"Adjacent layers, mean over kv heads ({profile.num_tokens} tokens)",
        caption="cosine: as they are; aligned: heads matched and rotated; "
        "angle: arccos(cosine)/π, 0.5 is orthogonal",
    )
    table.add_column("layers")
    for kind in ("K", "V"):
        for measure in ("cosine", "angle", "aligned", "CKA"):
            table.add_column(f"{kind}\n{measure}", justify="right")
    for pair in profile.pairs:
        cells = [
            f"{np.mean(numbers) + 0.0:.2f}"
            for kind in (pair.key, pair.value)
            for numbers in (kind.cosine, kind.angular_distance, kind.aligned_cosine, kind.cka)
        ]
        table.add_row(f"{pair.lower}, {pair.upper}", *cells)
    return table


def _loss_table(profile: SimilarityProfile) -> Table:
    table = Table(
        title="Relative error ‖x - x̂‖ / ‖x‖ of restored vectors",
        caption="magnitudes exact and not counted",
    )
    table.add_column("coding")
    table.add_column("bits per\ncomponent", justify="right")
    for kind in ("K", "V"):
        table.add_column(f"{kind}\nmean", justify="right")
        table.add_column(f"{kind}\nworst", justify="right")
    for title, field in (
        ("two layers share a direction", "merge_errors"),
        ("... heads aligned first", "aligned_merge_errors"),
    ):
        for bits in (16, 8, 4):
            keys = [error for pair in profile.pairs for error in getattr(pair.key, field)[bits]]
            values = [error for pair in profile.pairs for error in getattr(pair.value, field)[bits]]
            table.add_row(title, f"{bits / 2:g}", *_mean_and_worst(keys), *_mean_and_worst(values))
    table.add_section()
    for bits in (8, 4):
        keys = [layer.key[bits] for layer in profile.layers]
        values = [layer.value[bits] for layer in profile.layers]
        title = f"each layer alone, int{bits} per channel"
        table.add_row(title, f"{bits}", *_mean_and_worst(keys), *_mean_and_worst(values))
    return table


def _mean_and_worst(errors: list[float]) -> tuple[str, str]:
    return f"{np.mean(errors):.3f}", f"{np.max(errors):.3f}"
