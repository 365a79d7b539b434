"""Vectors that a projection makes of a layer's input, as the input's part that makes them.

Of W = U S V^T the vectors x W know the input's part x U and nothing else, and are known from it:
x W = (x U) S V^T (arXiv:2508.10395 for grouped-query attention). So x U can be had from the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

SMALLEST = 1e-5  # singular values below this share of the largest are noise


@dataclass(frozen=True)
class Latent:
    """A projection from a layer's input, split in two.

    Attributes:
        basis: U, fp32 ``[E, r]``, orthonormal columns.
        mix: S V^T, fp32 ``[r, N]``.
        bias: fp32 ``[N]``.
    """

    basis: Array
    mix: Array
    bias: Array

    @staticmethod
    def of(weight: Array, bias: Array) -> Latent:
        """Splits a weight ``[E, N]`` with its bias ``[N]``."""
        left, values, right = np.linalg.svd(weight.astype(np.float64), full_matrices=False)
        rank = int(np.sum(values > SMALLEST * values[0]))
        mix = values[:rank, None] * right[:rank]
        parts = (left[:, :rank], mix, bias)
        return Latent(*(np.asarray(part, np.float32) for part in parts))

    @property
    def rank(self) -> int:
        """Numbers r per token."""
        return len(self.mix)

    def encode(self, vectors_TN: Array) -> Array:
        """Returns x U ``[T, r]`` of the vectors x W ``[T, N]``."""
        squares = np.sum(np.square(self.mix, dtype=np.float64), axis=1)
        inverse = self.mix.T / squares  # V S^-1
        found: Array = ((vectors_TN - self.bias) @ inverse).astype(np.float32)
        return found

    def decode(self, latent_Tr: Array) -> Array:
        """Returns the vectors ``[T, N]`` of x U ``[T, r]``."""
        found: Array = latent_Tr @ self.mix + self.bias
        return found
