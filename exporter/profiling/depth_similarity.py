"""How alike neighbouring layers are, from what a calibration keeps: context for a plan's groups."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.exporter.calibration.calibration import KINDS, Calibration

Array = npt.NDArray[Any]


def depth_similarity(calibration: Calibration) -> list[dict[str, Any]]:
    """Mean raw cosine of each layer and the next one of its kind, kv head by kv head.

    Raw: nothing is aligned first, as a merge of directions would find it. Keys of both layers are
    turned by the same angles, which changes no cosine.

    Returns:
        By ascending layer: ``layers``, ``key_cosine``, ``value_cosine``; a cosine is None where no
        token has a direction in both layers.
    """
    by_kind: dict[int, list[int]] = {}
    for index, layer in enumerate(calibration.layers):
        by_kind.setdefault(layer.kind, []).append(index)
    pairs = sorted(pair for members in by_kind.values() for pair in itertools.pairwise(members))
    return [
        {
            "layers": [calibration.layers[place].layer for place in pair],
            **{
                f"{kind}_cosine": mean_cosine(*(calibration.samples[kind][place] for place in pair))
                for kind in KINDS
            },
        }
        for pair in pairs
    ]


def mean_cosine(a: Array, b: Array) -> float | None:
    """Mean cosine of vectors ``[n, Hk, D]``; zero and non-finite ones have none and are left out.

    Returns:
        None if nothing is left.
    """
    # fp16 samples: their squares would overflow.
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    # Of non-finite vectors, which are dropped.
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
        cosines = np.einsum("nhd,nhd->nh", a, b) / norms
    cosines = cosines[np.isfinite(cosines)]
    return round(float(np.clip(cosines, -1.0, 1.0).mean()), 4) if cosines.size else None
