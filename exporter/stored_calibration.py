"""Calibrates a model once per text and settings: what was made before is read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from minicache.exporter.baselines.exact_cache import coded_layers
from minicache.exporter.calibration.calibrate import DEFAULT_GROUP, DEFAULT_SEGMENT, calibrate
from minicache.exporter.calibration.calibration import Calibration
from minicache.exporter.calibration.store import CalibrationStore, fingerprint
from minicache.exporter.options import ExportOptions
from minicache.runtime.manifest import Manifest
from minicache.runtime.text_split import TextSplit

SEGMENT_LENGTH = DEFAULT_SEGMENT


def stored_calibration(
    exact_folder: Path,
    options: ExportOptions,
    split: TextSplit,
    largest_group: int,
    sinks: int,
    store: CalibrationStore,
) -> tuple[str, Calibration]:
    """Reads a kept calibration, or calibrates and keeps it.

    Args:
        exact_folder: an exact export of the model.
        options: of the export.
        split: its calibration part is read.
        largest_group: layers of the largest group that will be made.
        sinks: first tokens N of a document that stay exact.
        store: where calibrations are kept.

    Returns:
        its key in the store, and the calibration.

    Raises:
        MiniCacheError: as ``calibrate`` raises.
    """
    manifest = Manifest.load(exact_folder)
    settings: dict[str, Any] = {
        "max_tokens": options.calibration_tokens,
        "segment_length": SEGMENT_LENGTH,
        "max_sequence_length": manifest.max_sequence_length,
        # At least as many as usual, to be good for other plans.
        "max_group_size": max(largest_group, DEFAULT_GROUP),
        "sinks": sinks,
    }
    if split.prefix:  # the keys of models without one stay what they were
        settings["prefix"] = list(split.prefix)
    documents = split.calibration
    key = fingerprint(exact_folder, documents, sorted(settings.items()))
    calibration = store.load(key)
    # Earlier versions calibrated layers of sliding-window attention as well.
    if calibration is None or [x.layer for x in calibration.layers] != coded_layers(manifest):
        calibration = calibrate(exact_folder, documents=documents, quiet=options.quiet, **settings)
        store.save(key, calibration)
    return key, calibration
