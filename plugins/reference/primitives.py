"""The tensor primitives of MiniCache (arXiv:2405.14366): direction, magnitude, SLERP, restoration.

Every function works along the last axis, on arrays of any leading shape and any float type, and
computes and returns float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MAGNITUDES = ("own", "upper", "blended")
SMALLEST_SIN = 1e-4  # below it sin(Omega) cannot be divided by


def to_magnitude_direction(x: npt.ArrayLike) -> tuple[Array, Array]:
    """Splits vectors into length and unit direction (paper section 3.2).

    Args:
        x: ``[..., D]``, any float type.

    Returns:
        magnitude ``[...]`` and direction ``[..., D]``, float64. A zero vector has magnitude 0 and
        the zero vector as direction.
    """
    vectors = np.asarray(x).astype(np.float64)
    magnitude = np.sqrt(np.sum(vectors * vectors, axis=-1))
    divisor = np.where(magnitude > 0, magnitude, 1.0)
    return magnitude, vectors / divisor[..., None]


def similarity(a: npt.ArrayLike, b: npt.ArrayLike) -> Array:
    """Cosine between two sets of vectors ``[..., D]``; a zero vector counts as cosine 1.

    Returns:
        ``[...]`` float64 in [-1, 1].
    """
    magnitude_a, direction_a = to_magnitude_direction(a)
    magnitude_b, direction_b = to_magnitude_direction(b)
    cosine = np.clip(np.sum(direction_a * direction_b, axis=-1), -1.0, 1.0)
    return np.where((magnitude_a > 0) & (magnitude_b > 0), cosine, 1.0)


def slerp(a: npt.ArrayLike, b: npt.ArrayLike, t: float) -> Array:
    """Spherical linear interpolation from direction ``a`` (t = 0) to ``b`` (t = 1); paper Eq. 3.

    The angle is 2 atan2(|a - b|, |a + b|): unlike arccos it is exact near 0 and pi. Where the sine
    of the angle is below 1e-4, nearly equal directions are interpolated linearly and normalised,
    and of nearly opposite ones, which have no shortest arc, ``a`` is taken.

    Args:
        a: unit or zero vectors ``[..., D]``.
        b: likewise. A zero vector gives way to the other one; two give zero.
        t: 0..1.

    Returns:
        Unit (or zero) vectors ``[..., D]``, float64.
    """
    start, end = np.asarray(a).astype(np.float64), np.asarray(b).astype(np.float64)
    difference = np.linalg.norm(start - end, axis=-1, keepdims=True)
    omega = 2.0 * np.arctan2(difference, np.linalg.norm(start + end, axis=-1, keepdims=True))
    sine = np.sin(omega)
    degenerate = sine < SMALLEST_SIN
    divisor = np.where(degenerate, 1.0, sine)
    arc = (np.sin((1.0 - t) * omega) * start + np.sin(t * omega) * end) / divisor
    _, chord = to_magnitude_direction((1.0 - t) * start + t * end)
    same_side = np.sum(start * end, axis=-1, keepdims=True) > 0
    merged = np.where(degenerate, np.where(same_side, chord, start), arc)
    start_is_zero = ~np.any(start != 0, axis=-1, keepdims=True)
    end_is_zero = ~np.any(end != 0, axis=-1, keepdims=True)
    return np.where(start_is_zero, end, np.where(end_is_zero, start, merged))


def merge_group(
    vectors: Sequence[npt.ArrayLike] | Array,
    t: float,
    magnitude: str = "own",
    lengths: Sequence[npt.ArrayLike] | Array | None = None,
) -> tuple[Array, Array]:
    """Merges the vectors of G layers into one direction and the magnitudes that restore them.

    A pair is the paper's Eq. 3. Layer k of a larger group joins the running direction with weight
    2 t / (k + 1), which is the running spherical mean at t = 0.5.

    Args:
        vectors: G arrays ``[..., D]``, in layer order.
        t: the paper's interpolation parameter.
        magnitude: ``own`` (one per layer), ``upper`` (the last layer's) or ``blended``
            (interpolated with the directions' weights).
        lengths: G arrays ``[...]`` that magnitudes are made of; None: those of ``vectors``.

    Returns:
        direction ``[..., D]`` and magnitudes ``[..., G]`` (``own``) or ``[..., 1]``, float64.

    Raises:
        ValueError: no vectors, or an unknown ``magnitude``.
    """
    if len(vectors) == 0:
        raise ValueError("a group to merge has no layers; give one array per layer")
    if magnitude not in MAGNITUDES:
        raise ValueError(f"magnitude is {magnitude!r}, not one of {MAGNITUDES}")
    parts = [to_magnitude_direction(vector) for vector in vectors]
    if lengths is not None:
        own = [np.asarray(length).astype(np.float64) for length in lengths]
        parts = [(length, unit) for length, (_, unit) in zip(own, parts, strict=True)]
    blended, direction = parts[0]
    for k, (length, unit) in enumerate(parts[1:], start=1):
        weight = 2.0 * t / (k + 1)
        direction = slerp(direction, unit, weight)
        blended = (1.0 - weight) * blended + weight * length
    if magnitude == "own":
        return direction, np.stack([length for length, _ in parts], axis=-1)
    return direction, (parts[-1][0] if magnitude == "upper" else blended)[..., None]


def merge_pair(
    x_a: npt.ArrayLike, x_b: npt.ArrayLike, t: float, magnitude: str = "own"
) -> tuple[Array, Array]:
    """Merges two layers' vectors ``[..., D]`` (paper Eq. 3).

    Returns:
        direction ``[..., D]`` and magnitudes ``[..., 2]`` (``own``) or ``[..., 1]``; see
        ``merge_group``.
    """
    return merge_group([np.asarray(x_a), np.asarray(x_b)], t, magnitude)


def restore(direction: npt.ArrayLike, magnitude: npt.ArrayLike) -> Array:
    """Restores vectors from a shared direction and their magnitudes (paper Eq. 2).

    Args:
        direction: ``[..., D]``.
        magnitude: ``[...]``, one layer's.

    Returns:
        ``[..., D]`` float64.
    """
    length = np.asarray(magnitude).astype(np.float64)
    restored: Array = length[..., None] * np.asarray(direction).astype(np.float64)
    return restored
