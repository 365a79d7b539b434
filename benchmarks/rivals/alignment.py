"""Maps between the values of two layers: heads matched, canonical correlations within each pair.

With second moments S11 of the reference's head, S22 of the other's and S12 between them, and
U s V^T = S11^-1/2 S12 S22^-1/2, the map S22^-1/2 V U^T S11^1/2 takes (row) vectors of the other
head to the reference's frame (arXiv:2610.12338, its published code).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

Array = npt.NDArray[Any]

RIDGE = 1e-4  # of the mean moment


@dataclass(frozen=True)
class HeadMap:
    """From a layer's heads to the reference's.

    Attributes:
        heads: of each reference head, which head of the layer is its partner, int ``[Hk]``.
        forward: of each reference head, fp32 ``[Hk, D, D]``, applied from the right.
        backward: their inverses.
    """

    heads: Array
    forward: Array
    backward: Array

    @staticmethod
    def identity(heads: int, size: int) -> HeadMap:
        """The map of the reference itself."""
        eye = np.tile(np.eye(size, dtype=np.float32), (heads, 1, 1))
        return HeadMap(np.arange(heads), eye, eye)

    def apply(self, values_HkTD: Array) -> Array:
        """Values ``[Hk, T, D]`` in the reference's frame, fp32."""
        mapped: Array = np.asarray(values_HkTD, np.float32)[self.heads] @ self.forward
        return mapped

    def undo(self, values_HkTD: Array) -> Array:
        """The other way round."""
        found = np.empty_like(values_HkTD, np.float32)
        found[self.heads] = values_HkTD @ self.backward
        return found


def fit_map(reference_nHkD: Array, other_nHkD: Array) -> HeadMap:
    """Fits the map of a layer's values to a reference's, on the same tokens ``[n, Hk, D]``."""
    first, second = (np.asarray(x, np.float64) for x in (reference_nHkD, other_nHkD))
    tokens, heads, _ = first.shape
    own = np.einsum("nhi,nhj->hij", first, first, optimize=True) / tokens
    other = np.einsum("nhi,nhj->hij", second, second, optimize=True) / tokens
    cost = np.empty((heads, heads))
    maps: dict[tuple[int, int], tuple[Array, Array]] = {}
    for i in range(heads):
        for j in range(heads):
            cross = first[:, i].T @ second[:, j] / tokens
            maps[i, j] = forward, backward = canonical_map(own[i], other[j], cross)
            # ||x1 T - x2||^2 from the moments, T taking the reference to the other head.
            error = np.trace(backward.T @ own[i] @ backward) + np.trace(other[j])
            cost[i, j] = np.sqrt(max(error - 2 * np.trace(backward.T @ cross), 0.0))
    rows, partners = linear_sum_assignment(cost)
    found = [maps[i, j] for i, j in zip(rows.tolist(), partners.tolist(), strict=True)]
    forward, backward = (np.asarray(x, np.float32) for x in zip(*found, strict=True))
    return HeadMap(np.asarray(partners), forward, backward)


def canonical_map(own: Array, other: Array, cross: Array) -> tuple[Array, Array]:
    """Map from the other head's frame to the reference's, and its inverse.

    Args:
        own: second moments ``[D, D]`` of the reference head.
        other: of the other head.
        cross: reference times other.
    """
    root, inverse_root = _roots(own)
    other_root, other_inverse_root = _roots(other)
    left, _, right = np.linalg.svd(inverse_root @ cross @ other_inverse_root)
    turn = left @ right
    return other_inverse_root @ turn.T @ root, inverse_root @ turn @ other_root


def _roots(moments: Array) -> tuple[Array, Array]:
    """Square root of a regularised moment matrix, and its inverse."""
    ridge = RIDGE * max(float(np.trace(moments)) / len(moments), 1e-12)
    values, vectors = np.linalg.eigh(moments + ridge * np.eye(len(moments)))
    values = np.maximum(values, ridge)
    scaled = vectors * np.sqrt(values)
    inverse = vectors / np.sqrt(values)
    return scaled @ vectors.T, inverse @ vectors.T
