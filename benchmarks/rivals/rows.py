"""The vectors of a layer as rows of a matrix, one per token, and keys without their RoPE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.exporter.calibration.rope_probe import Rope
from minicache.exporter.calibration.rotation import rotate

Array = npt.NDArray[Any]


def to_rows(vectors_HkTD: Array) -> Array:
    """``[T, Hk * D]`` in fp32 of ``[Hk, T, D]``."""
    heads, tokens, size = vectors_HkTD.shape
    rows: Array = np.swapaxes(vectors_HkTD, 0, 1).astype(np.float32)
    return rows.reshape(tokens, heads * size)


def from_rows(rows_TN: Array, heads: int) -> Array:
    """``[Hk, T, D]`` in fp32 of ``[T, Hk * D]``."""
    tokens, width = rows_TN.shape
    by_head = rows_TN.reshape(tokens, heads, width // heads)
    return np.ascontiguousarray(np.swapaxes(by_head, 0, 1), np.float32)


def unrotate(
    keys_LHkTD: Sequence[Array], ropes: Sequence[Rope], start: int, *, back: bool = False
) -> list[Array]:
    """Keys before RoPE of keys after it.

    Args:
        keys_LHkTD: by layer ``[Hk, T, D]`` of positions [start, start + T).
        ropes: of each layer.
        start: position of the first token.
        back: the other way: RoPE is applied.
    """
    turned = []
    for key, rope in zip(keys_LHkTD, ropes, strict=True):
        positions = np.arange(start, start + key.shape[1])
        turned.append(rotate(np.asarray(key, np.float32), positions if back else -positions, rope))
    return turned
