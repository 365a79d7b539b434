"""A calibration as one ``.npz`` file, so that other ratios and plans need no model run."""

from __future__ import annotations

import dataclasses
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.exporter.calibration.calibration import KINDS, CalibratedLayer, Calibration
from minicache.exporter.calibration.moments import JointMoments
from minicache.exporter.calibration.rope_probe import Rope
from minicache.runtime.errors import OutputError, PackageError

Array = npt.NDArray[Any]

FORMAT = 1


def save_calibration(calibration: Calibration, path: Path) -> None:
    """Writes everything to one file.

    Raises:
        OutputError: the disk refuses.
    """
    meta = {
        "format": FORMAT,
        "layers": [dataclasses.asdict(layer) for layer in calibration.layers],
        "partners": calibration.moments["key"].partners,
        "weights": [calibration.moments[kind].weight for kind in KINDS],
        "notes": calibration.notes,
    }
    for name in ("segment_length", "max_sequence_length", "sinks", "tokens"):
        meta[name] = getattr(calibration, name)
    arrays: dict[str, Array] = {"meta": np.array(json.dumps(meta))}
    for layer in range(len(calibration.layers)):
        arrays[f"query_moment.{layer}"] = calibration.query_moments[layer]
        arrays[f"output_metric.{layer}"] = calibration.output_metrics[layer]
        for kind in KINDS:
            arrays[f"{kind}_moment.{layer}"] = calibration.moments[kind].sums[layer]
            arrays[f"{kind}_sample.{layer}"] = calibration.samples[kind][layer]
    try:
        with path.open("wb") as file:  # np.savez given a name would append ".npz" to it
            np.savez(file, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        raise OutputError(
            f"the calibration cannot be written to {str(path)!r} ({error.strerror}); "
            "free some space or choose another file"
        ) from error


def load_calibration(path: Path) -> Calibration:
    """Reads what ``save`` wrote.

    Raises:
        PackageError: missing, damaged, or of another version.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            meta = json.loads(str(file["meta"]))
            if meta["format"] != FORMAT:
                raise PackageError(
                    f"calibration {str(path)!r} has format {meta['format']}, this version "
                    f"reads {FORMAT}; calibrate again"
                )
            return _from_file(file, meta)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise PackageError(
            f"{str(path)!r} is no calibration or is damaged ({error}); calibrate again"
        ) from error


def _from_file(file: Any, meta: dict[str, Any]) -> Calibration:
    layers = tuple(
        CalibratedLayer(
            **{
                **layer,
                "rope": Rope(
                    **{**layer["rope"], "frequencies": tuple(layer["rope"]["frequencies"])}
                ),
            }
        )
        for layer in meta["layers"]
    )
    count = range(len(layers))
    moments = {}
    for kind, weight in zip(KINDS, meta["weights"], strict=True):
        widths = [layer.num_kv_heads * layer.head_dim for layer in layers]
        moments[kind] = JointMoments(meta["partners"], widths)
        moments[kind].sums = [file[f"{kind}_moment.{layer}"] for layer in count]
        moments[kind].weight = weight
    return Calibration(
        layers=layers,
        query_moments=[file[f"query_moment.{layer}"] for layer in count],
        output_metrics=[file[f"output_metric.{layer}"] for layer in count],
        moments=moments,
        samples={kind: [file[f"{kind}_sample.{layer}"] for layer in count] for kind in KINDS},
        segment_length=meta["segment_length"],
        max_sequence_length=meta["max_sequence_length"],
        sinks=meta["sinks"],
        tokens=meta["tokens"],
        notes=meta["notes"],
    )
