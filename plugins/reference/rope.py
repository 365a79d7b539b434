"""RoPE by positions: how keys move into the frame of their segment and back (``subspace``)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from minicache.plugins.reference.primitives import Array


def rotate_by_positions(
    vectors: npt.ArrayLike,
    positions: npt.ArrayLike,
    frequencies: npt.ArrayLike,
    interleaved: bool = False,
) -> Array:
    """Applies the model's RoPE, R(a), to vectors by ``a`` positions each.

    Args:
        vectors: ``[..., tokens, D]``.
        positions: ``[tokens]`` or one number; negative ones turn back.
        frequencies: ``[D_rot/2]``, the angle per position of each pair.
        interleaved: pairs are (2i, 2i + 1), not (i, i + D_rot/2).

    Returns:
        The rotated vectors, float64; components from D_rot on stay.
    """
    rotated = np.array(vectors).astype(np.float64)
    rates = np.asarray(frequencies).astype(np.float64)
    angles = np.asarray(positions).astype(np.float64)[..., None] * rates
    count = rates.size
    if interleaved:
        first, second = slice(0, 2 * count, 2), slice(1, 2 * count, 2)
    else:
        first, second = slice(0, count), slice(count, 2 * count)
    x, y = rotated[..., first].copy(), rotated[..., second].copy()
    with np.errstate(invalid="ignore"):  # infinite components become NaN
        rotated[..., first] = x * np.cos(angles) - y * np.sin(angles)
        rotated[..., second] = x * np.sin(angles) + y * np.cos(angles)
    return rotated


def segment_offsets(positions: npt.ArrayLike, segment_length: int) -> Array:
    """First position of the segment in which each position lies; 0 where segments are off."""
    at = np.asarray(positions)
    return at // segment_length * segment_length if segment_length > 0 else np.zeros_like(at)
