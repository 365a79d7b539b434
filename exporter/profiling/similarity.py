"""How alike two layers' vectors are, and what restoring them from shared or short codes loses.

Shapes: T tokens, Hk kv heads, D head size. ``a`` is the lower layer, ``b`` the upper one.
Alignments are fitted on one set of tokens and everything is measured on another, so that none is
flattered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from minicache.plugins.reference import (
    dequantise,
    merge_pair,
    quantise,
    restore,
    similarity,
    to_magnitude_direction,
)

Array = npt.NDArray[Any]

PAPER_T = 0.6  # arXiv:2405.14366, section 4
CODE_BITS = (16, 8, 4)
CANDIDATE_HEADS = 4  # per head to match: a model with 32 kv heads would need 1024 decompositions


@dataclass(frozen=True)
class Alignment:
    """Which head of the upper layer matches which of the lower one, and the rotation between them.

    Attributes:
        permutation: for each head of the lower layer, the head of the upper layer.
        rotations: [Hk, D, D]; ``b[:, permutation[h]] @ rotations[h]`` lies closest to ``a[:, h]``.
    """

    permutation: tuple[int, ...]
    rotations: Array

    def apply(self, b: Array) -> Array:
        """Brings the upper layer's vectors [T, Hk, D] into the lower layer's heads and bases."""
        by_head = b[:, self.permutation].transpose(1, 0, 2)
        turned: Array = np.matmul(by_head, self.rotations.astype(b.dtype)).transpose(1, 0, 2)
        return turned


def fit_alignment(a: Array, b: Array) -> Alignment:
    """Finds the orthogonal alignment that maximises the mean cosine (orthogonal Procrustes).

    The best rotation between two heads follows from the singular value decomposition of the cross
    moment of their directions, and the sum of the singular values is the sum of cosines it reaches.
    Heads are then matched by the assignment that maximises the total.

    Args:
        a: [T, Hk, D] of the lower layer.
        b: likewise of the upper one.
    """
    heads, size = a.shape[1:]
    _, direction_a = to_magnitude_direction(a)
    _, direction_b = to_magnitude_direction(b)
    flat_a = direction_a.reshape(len(a), -1).astype(np.float32)
    flat_b = direction_b.reshape(len(b), -1).astype(np.float32)
    # [lower head, upper head, D of the upper, D of the lower]
    moments = (flat_b.T @ flat_a).reshape(heads, size, heads, size).transpose(2, 0, 1, 3)
    # Frobenius norms never exceed the sums of singular values, and tell which ones to compute.
    reached = np.linalg.norm(moments, axis=(2, 3))
    likely = np.argsort(-reached, axis=1)[:, :CANDIDATE_HEADS]
    for head, candidates in enumerate(likely):
        reached[head, candidates] = _nuclear_norm(moments[head, candidates])
    lower, upper = linear_sum_assignment(reached, maximize=True)
    left, _, right = np.linalg.svd(moments[lower, upper])
    return Alignment(tuple(int(head) for head in upper), left @ right)


def _nuclear_norm(matrices: Array) -> Array:
    """Sums of singular values, [..., D, D] to [...]; 10 times as fast as ``np.linalg.svd``."""
    wide = matrices.astype(np.float64)
    squares = np.linalg.eigvalsh(np.matmul(np.swapaxes(wide, -1, -2), wide))
    total: Array = np.sqrt(np.maximum(squares, 0.0)).sum(axis=-1)
    return total


def mean_cosine(a: Array, b: Array) -> Array:
    """Mean over tokens of the cosine, per head: [Hk]."""
    mean: Array = similarity(a, b).mean(axis=0)
    return mean


def angular_distance(a: Array, b: Array) -> Array:
    """Mean over tokens of arccos(cosine) / pi, per head: 0 same direction, 0.5 orthogonal."""
    mean: Array = (np.arccos(similarity(a, b)) / np.pi).mean(axis=0)
    return mean


def linear_cka(a: Array, b: Array) -> Array:
    """Linear centred kernel alignment per head (Kornblith et al. 2019, arXiv:1905.00414, Eq. 3).

    It ignores rotations and scale, so it tells whether two heads span the same information.
    """
    x = (a - a.mean(axis=0)).transpose(1, 0, 2).astype(np.float64)
    y = (b - b.mean(axis=0)).transpose(1, 0, 2).astype(np.float64)

    def squared_norm(left: Array, right: Array) -> Array:
        moment = np.matmul(left.transpose(0, 2, 1), right)
        total: Array = np.sum(moment * moment, axis=(1, 2))
        return total

    scale = np.sqrt(squared_norm(x, x) * squared_norm(y, y))
    cka: Array = squared_norm(x, y) / np.where(scale > 0, scale, 1.0)
    return cka


def relative_error(x: Array, restored: Array) -> float:
    """||x - restored|| / ||x|| over all tokens, heads and components."""
    norm = float(np.linalg.norm(x))
    return float(np.linalg.norm(np.asarray(x, np.float64) - restored)) / norm if norm else 0.0


def merge_errors(a: Array, b: Array, t: float = PAPER_T) -> dict[int, tuple[float, float]]:
    """Relative errors of both layers when restored from one shared direction.

    Each layer keeps its own magnitudes, unrounded, so that the errors are the direction's alone.

    Args:
        a: [T, Hk, D] of the lower layer.
        b: of the upper layer, heads matched; a rotation into the basis of ``a`` changes no error.
        t: interpolation parameter.

    Returns:
        by code bits (16, 8, 4): errors of the lower and of the upper layer.
    """
    direction, magnitudes = merge_pair(a, b, t)
    errors = {}
    for bits in CODE_BITS:
        components, step = quantise(direction, bits)
        coded = dequantise(components, bits) * step[..., None]
        errors[bits] = (
            relative_error(a, restore(coded, magnitudes[..., 0])),
            relative_error(b, restore(coded, magnitudes[..., 1])),
        )
    return errors


def quantisation_error(fitted: Array, measured: Array, bits: int) -> float:
    """Relative error of a static integer cache with one scale and zero point per channel.

    The yardstick: the same layer, not shared with any other, at ``bits`` per component.

    Args:
        fitted: [T, Hk, D] that the channels' ranges are taken from.
        measured: [T, Hk, D] that is coded; values beyond the range are clipped.
        bits: 8 or 4.
    """
    low, high = fitted.min(axis=0), fitted.max(axis=0)
    levels = 2**bits - 1
    scale = np.where(high > low, (high - low) / levels, 1.0)
    code = np.clip(np.rint((measured - low) / scale), 0, levels)
    return relative_error(measured, code * scale + low)
