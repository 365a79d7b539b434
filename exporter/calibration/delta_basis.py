"""Bases for the deltas of a pair (docs/operator.md, Deltas of a pair).

The deltas of a head over a text are d = (u_0 - u_1) / 2. Of all orthonormal sets of r rows, the
first r principal axes of E[d d^T] keep most of E[|d|^2]. It is not centred: a direction has no
mean that could stand for it, and the operator adds none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.exporter.calibration.group_tables import GroupTables
from minicache.exporter.calibration.rope_probe import Rope
from minicache.exporter.calibration.rotation import average_over_offsets
from minicache.plugins.reference.delta import split_pair

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class DeltaBasis:
    """The basis of one kind of vectors.

    Attributes:
        rows: ``[Hk, rank, D]`` fp32, orthonormal, by code head.
        kept: which share of the deltas' energy lies in it, mean over the heads.
    """

    rows: Array
    kept: float


def fit_delta_basis(
    first: Array, second: Array, rank: int, rope: Rope | None = None, max_offset: int = 0
) -> DeltaBasis:
    """Fits the basis of a pair's keys or values.

    Args:
        first: of the lower layer ``[n, Hk, D]``, by code head.
        second: of the upper one.
        rank: rows.
        rope: of keys that are merged where they are in the text, while these samples are in the
            frame of their segment: the moments are averaged over the offsets of segments.
        max_offset: the largest of them.
    """
    pair = np.stack([first, second]).astype(np.float64).transpose(0, 2, 1, 3)
    deltas = split_pair(pair)[1]  # [Hk, n, D]
    moments = deltas.swapaxes(1, 2) @ deltas / max(1, deltas.shape[1])
    if rope is not None:
        moments = average_over_offsets(moments, rope, max_offset, own_share=0.0)
    energies, axes = np.linalg.eigh(moments)  # ascending
    rows = axes[:, :, ::-1][:, :, :rank].swapaxes(1, 2)
    total, main = energies.sum(axis=1), energies[:, ::-1][:, :rank].sum(axis=1)
    kept = np.where(total > 0, main / np.where(total > 0, total, 1), 1)  # equal layers lack nothing
    return DeltaBasis(np.ascontiguousarray(rows, np.float32), float(kept.mean()))


@dataclass(frozen=True)
class DeltaTables:
    """The constant inputs of a pair with deltas in bases, beside those of its alignment.

    Attributes:
        bases: by ``key`` and ``value``.
        alignment: of the pair, or None.
    """

    bases: Mapping[str, DeltaBasis]
    alignment: GroupTables | None = None

    def attributes(self) -> dict[str, Any]:
        """Attributes of the nodes beside those of ``slerp``, by the names of ``schemas``."""
        return self.alignment.attributes() if self.alignment else {}

    def arrays(self, slot: int, decoder_dtype: npt.DTypeLike = np.float32) -> dict[str, Array]:
        """Constant inputs of the node of one slot, by the names of ``schemas``, in its order."""
        found = self.alignment.arrays(slot, decoder_dtype) if self.alignment else {}
        for kind, basis in self.bases.items():
            found[f"{kind}_delta_basis"] = basis.rows.astype(decoder_dtype)
        return found
