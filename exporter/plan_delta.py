"""The calibrated stage of ``--delta-rank``: a basis for what each pair's directions lack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minicache.exporter.calibration.alignment import Alignment
from minicache.exporter.calibration.calibration import KINDS, Calibration
from minicache.exporter.calibration.delta_basis import DeltaBasis, DeltaTables, fit_delta_basis
from minicache.exporter.calibration.group_tables import GroupTables
from minicache.exporter.calibration.store import CalibrationStore, default_store
from minicache.exporter.options import ExportOptions
from minicache.exporter.plan import Group, Plan
from minicache.exporter.profiling.depth_similarity import depth_similarity
from minicache.exporter.stored_calibration import stored_calibration
from minicache.runtime.text_split import TextSplit


@dataclass(frozen=True)
class DeltaChoice:
    """What the stage made.

    Attributes:
        tables: by the first layer of their pair, those of an alignment included.
        kept: JSON-ready: of each pair the ``layers`` and which share of its deltas' energy lies in
            the bases, ``key`` and ``value``.
        calibration_tokens: tokens that were read.
        similarity: of adjacent layers on the calibration text, not aligned.
        notes: remarks for the report.
    """

    tables: dict[int, GroupTables]
    kept: list[dict[str, Any]]
    calibration_tokens: int
    similarity: list[dict[str, Any]]
    notes: list[str]


def fit_deltas(
    exact_folder: Path,
    options: ExportOptions,
    split: TextSplit,
    plan: Plan,
    alignments: Mapping[int, GroupTables],
) -> DeltaChoice:
    """Calibrates, and fits a basis to each pair of a plan that asks for it.

    Args:
        exact_folder: an exact export of the model.
        options: of the export.
        split: its calibration part is read.
        plan: of the paper mode.
        alignments: of aligned pairs, by their first layer.

    Raises:
        MiniCacheError: as calibration raises.
    """
    largest = max(len(group.layers) for group in plan.groups)
    store = CalibrationStore(options.cache or default_store())
    _, calibration = stored_calibration(exact_folder, options, split, largest, plan.sinks, store)
    tables: dict[int, GroupTables] = {}
    kept: list[dict[str, Any]] = []
    for group in (group for group in plan.groups if group.delta_rank):
        alignment = alignments.get(group.layers[0])
        assert alignment is None or isinstance(alignment, Alignment)
        bases = {kind: _basis(calibration, group, kind, alignment) for kind in KINDS}
        tables[group.layers[0]] = DeltaTables(bases, alignment)
        shares = {kind: round(basis.kept, 4) for kind, basis in bases.items()}
        kept.append({"layers": list(group.layers), **shares})
    means = {kind: sum(row[kind] for row in kept) / len(kept) for kind in KINDS}
    rank = options.delta_rank
    note = (
        f"deltas keep {rank} of {calibration.layers[0].head_dim} components, with "
        f"{means['key']:.0%} of their energy for keys and {means['value']:.0%} for values, on "
        f"{calibration.tokens} tokens of the calibration text"
    )
    similarity = depth_similarity(calibration)
    return DeltaChoice(tables, kept, calibration.tokens, similarity, [note, *calibration.notes])


def _basis(
    calibration: Calibration, group: Group, kind: str, alignment: Alignment | None
) -> DeltaBasis:
    places = [calibration.place(layer) for layer in group.layers]
    first, second = (calibration.samples[kind][place] for place in places)
    if alignment is not None:
        bases = alignment.key if kind == "key" else alignment.value
        first, second = bases.align(0, first), bases.align(1, second)
    rope = calibration.layers[places[0]].rope
    # Samples of keys lie in the frame of their segment; only aligned ones are merged there.
    moved = kind == "key" and alignment is None and calibration.segment_length > 0
    longest = calibration.max_sequence_length
    return fit_delta_basis(first, second, group.delta_rank, rope if moved else None, longest)
