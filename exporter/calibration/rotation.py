"""RoPE as numbers: rotating vectors by positions, and a metric averaged over positions.

Conventions are the operator's (docs/operator.md, section subspace): pair i of a vector, components
(i, i + n) or (2i, 2i+1) with n frequencies, turns by position * frequency; (x, y) becomes
(x cos - y sin, x sin + y cos).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.exporter.calibration.rope_probe import Rope

Array = npt.NDArray[Any]

OFFSET_STEPS = 64  # offsets that stand for all of 0..max_sequence_length
# Contexts of any length up to the maximum are used, short ones more often, and attention prefers
# what is near: queries of a key's own segment get half of the weight.
OWN_SHARE = 0.5


def rotate(vectors: Array, positions: npt.ArrayLike, rope: Rope) -> Array:
    """R(p) x.

    Args:
        vectors: ``[..., D]``.
        positions: by how many positions, of any shape that broadcasts with ``[...]``.
        rope: of the layer; anything but a rotary one leaves the vectors as they are.

    Returns:
        ``[..., D]`` of the vectors' type; angles are computed in double precision.
    """
    if rope.kind != "rotary":
        return vectors
    half = len(rope.frequencies)
    angle = np.asarray(positions, np.float64)[..., None] * np.asarray(rope.frequencies)
    cos, sin = np.cos(angle).astype(vectors.dtype), np.sin(angle).astype(vectors.dtype)
    step = 2 if rope.interleaved else 1
    first = slice(0, 2 * half, 2) if rope.interleaved else slice(0, half)
    second = slice(1, 2 * half, step) if rope.interleaved else slice(half, 2 * half)
    x, y = vectors[..., first], vectors[..., second]
    shape = np.broadcast_shapes(x.shape, cos.shape)
    turned = np.broadcast_to(vectors, (*shape[:-1], vectors.shape[-1])).copy()
    turned[..., first] = x * cos - y * sin
    turned[..., second] = x * sin + y * cos
    return turned


def segment_offset(positions: npt.ArrayLike, segment_length: int) -> npt.NDArray[np.int64]:
    """First position of the segment that each position lies in; 0 without segments."""
    given = np.asarray(positions, np.int64)
    return given // segment_length * segment_length if segment_length else np.zeros_like(given)


def average_over_offsets(
    moments: Array, rope: Rope, max_sequence_length: int, own_share: float = OWN_SHARE
) -> Array:
    """Mean of R(o) Q R(o)^T over how far behind its segment a query may stand.

    A key's segment is read by the queries of all later positions. Over all pairs of a segment and
    a query in a full cache, an offset o comes up in proportion to max - o.

    Args:
        moments: second moments Q ``[..., D, D]`` of queries at the calibration's positions.
        rope: of the layer.
        max_sequence_length: the largest offset.
        own_share: weight of offset 0, i.e. of queries in the segment itself.
    """
    if rope.kind != "rotary" or max_sequence_length <= 0:
        return moments
    total = np.zeros_like(moments)
    weights = 0.0
    for step in range(OFFSET_STEPS):
        offset = step * max_sequence_length / OFFSET_STEPS
        weight = 1.0 - step / OFFSET_STEPS
        # Rows, then columns: R (R Q)^T = R Q^T R^T, and Q is symmetric.
        half = rotate(moments, offset, rope)
        total += weight * rotate(np.swapaxes(half, -1, -2), offset, rope)
        weights += weight
    return own_share * moments + (1.0 - own_share) * total / weights
