"""The calibrated stage of ``--mode paper --align``: what turns a group's layers to each other."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minicache.exporter.calibration.alignment import Alignment
from minicache.exporter.calibration.calibration import KINDS, Calibration
from minicache.exporter.calibration.store import CalibrationStore, default_store
from minicache.exporter.options import ExportOptions
from minicache.exporter.plan import Plan
from minicache.exporter.profiling.depth_similarity import depth_similarity, mean_cosine
from minicache.exporter.reporting.number_text import plain
from minicache.exporter.stored_calibration import stored_calibration
from minicache.runtime.text_split import TextSplit


@dataclass(frozen=True)
class AlignedChoice:
    """What the stage made.

    Attributes:
        alignments: by the first layer of their group.
        cosines: JSON-ready: of each group the ``layers`` and the mean cosine of neighbouring ones,
            ``key_raw``, ``key_aligned``, ``value_raw``, ``value_aligned``; None where undefined.
        calibration_tokens: tokens that were read.
        similarity: of adjacent layers on the calibration text, not aligned.
        notes: remarks for the report.
    """

    alignments: dict[int, Alignment]
    cosines: list[dict[str, Any]]
    calibration_tokens: int
    similarity: list[dict[str, Any]]
    notes: list[str]


def align_plan(
    exact_folder: Path, options: ExportOptions, split: TextSplit, plan: Plan
) -> AlignedChoice:
    """Calibrates, and aligns the groups of a plan that ask for it.

    Args:
        exact_folder: an exact export of the model.
        options: of the export.
        split: its calibration part is read.
        plan: of the paper mode.

    Raises:
        PlanError: layers that cannot share a code.
        MiniCacheError: as calibration raises.
    """
    largest = max(len(group.layers) for group in plan.groups)
    store = CalibrationStore(options.cache or default_store())
    _, calibration = stored_calibration(exact_folder, options, split, largest, plan.sinks, store)
    alignments = {
        group.layers[0]: calibration.alignment(group.layers) for group in plan.groups if group.align
    }
    cosines = [group_cosines(calibration, alignment) for alignment in alignments.values()]
    means = {
        name: _two_decimals(_mean(row[name] for row in cosines))
        for name in ("key_raw", "key_aligned", "value_raw", "value_aligned")
    }
    note = (
        f"aligned on {calibration.tokens} tokens: the mean cosine of a group's layers goes from "
        f"{means['key_raw']} to {means['key_aligned']} for keys and from {means['value_raw']} to "
        f"{means['value_aligned']} for values"
    )
    return AlignedChoice(
        alignments,
        cosines,
        calibration.tokens,
        depth_similarity(calibration),
        [note, *calibration.notes],
    )


def group_cosines(calibration: Calibration, alignment: Alignment) -> dict[str, Any]:
    """Mean cosine of a group's neighbouring layers, as they are and aligned, on the samples."""
    found: dict[str, Any] = {"layers": list(alignment.layers)}
    for kind, bases in zip(KINDS, (alignment.key, alignment.value), strict=True):
        samples = calibration.samples[kind]
        raw = [samples[calibration.place(layer)] for layer in alignment.layers]
        aligned = [bases.align(slot, vectors) for slot, vectors in enumerate(raw)]
        for name, vectors in (("raw", raw), ("aligned", aligned)):
            pairs = [mean_cosine(a, b) for a, b in itertools.pairwise(vectors)]
            found[f"{kind}_{name}"] = _mean(pairs)
    return found


def _two_decimals(value: float | None) -> str:
    """As reports write it, but 0.00 where it would be -0.00."""
    return plain(None if value is None else round(value, 2) + 0.0)


def _mean(values: Iterable[float | None]) -> float | None:
    """Of those that are defined; None if none is."""
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 4) if known else None
