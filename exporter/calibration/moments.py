"""Second moments of keys, values and queries, gathered chunk by chunk.

Joint moments are kept for every layer with its next ones of the same kind, so that any group of
neighbouring layers, any matching of heads and any number of code heads can be evaluated without
running the model again. Memory is independent of the text: layers * span * (Hk * D)^2 numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MOMENT_BYTES = 2 << 30  # most that the joint moments of keys and values take together


def partners(kinds: Sequence[int], span: int) -> list[list[int]]:
    """For each layer, itself and the next ones of its kind: ``span`` in all, where there are."""
    found = []
    for layer, kind in enumerate(kinds):
        alike = [other for other in range(layer, len(kinds)) if kinds[other] == kind]
        found.append(alike[:span])
    return found


def affordable_span(widths: Sequence[int], wanted: int, limit: int = MOMENT_BYTES) -> int:
    """The largest span up to ``wanted`` whose moments of keys and values fit into memory.

    Args:
        widths: Hk * D of each layer.
        wanted: layers of the largest group.
        limit: bytes.
    """
    per_layer = 2 * 4 * sum(width * width for width in widths)
    return max(1, min(wanted, limit // max(per_layer, 1)))


class JointMoments:
    """Sums of x_a x_b^T over tokens, of every layer a with its partners b.

    Each token counts with a weight of its own, the same for all layers and heads.

    Args:
        partners: as the function of this name returns them.
        widths: Hk * D of each layer.
    """

    def __init__(self, partners: Sequence[Sequence[int]], widths: Sequence[int]) -> None:
        self.partners = [list(row) for row in partners]
        self.widths = list(widths)
        self.sums = [
            np.zeros((width, sum(widths[other] for other in row)), np.float32)
            for width, row in zip(widths, partners, strict=True)
        ]
        self.weight = 0.0

    def add(self, vectors: Sequence[Array], weights: Array) -> None:
        """Adds tokens.

        Args:
            vectors: by layer ``[T, Hk, D]``.
            weights: ``[T]``; the square root of it scales each vector.
        """
        root = np.sqrt(weights).astype(np.float32)[:, None]
        scaled = [layer.reshape(len(layer), -1) * root for layer in vectors]
        for layer, row in enumerate(self.partners):
            joined = np.concatenate([scaled[other] for other in row], axis=1)
            self.sums[layer] += scaled[layer].T @ joined
        self.weight += len(root)

    def block(self, a: int, b: int) -> Array | None:
        """Mean of x_a x_b^T ``[Hk*D, Hk*D]`` fp64; None where it was not gathered."""
        low, high = min(a, b), max(a, b)
        if high not in self.partners[low]:
            return None
        row = self.partners[low]
        start = sum(self.widths[other] for other in row[: row.index(high)])
        found = self.sums[low][:, start : start + self.widths[high]] / max(self.weight, 1.0)
        return (found if a <= b else found.T).astype(np.float64)


def head_moments(vectors: Array, kv_heads: int) -> Array:
    """Sum over tokens and query heads of q q^T, by kv head that they read.

    Args:
        vectors: queries ``[T, H, D]``.
        kv_heads: Hk.

    Returns:
        ``[Hk, D, D]``, divided by the query heads per kv head.
    """
    tokens, heads, size = vectors.shape
    shared = heads // kv_heads
    split = vectors.reshape(tokens, kv_heads, shared, size).transpose(1, 0, 2, 3)
    flat = split.reshape(kv_heads, tokens * shared, size)
    total: Array = (np.swapaxes(flat, 1, 2) @ flat).astype(np.float64) / shared
    return total


def token_weights(vectors: Sequence[Array], metrics: Sequence[Array], means: Array | None) -> Array:
    """One over a token's squared length, relative to the average token, over all layers and heads.

    A codec stores a unit direction and a length, so every token's direction counts the same.
    The length of a code is that of its own group and head; this common one serves every group.
    Measured on SmolLM2-135M, G = 3: within 1 % of the error with moments of the group's own unit
    directions, where plain moments lose 1 to 3 %.

    Args:
        vectors: by layer ``[T, Hk, D]``.
        metrics: by layer ``[Hk, D, D]``.
        means: mean squared lengths ``[layers, Hk max]``; None: no weights, all 1.

    Returns:
        ``[T]``.
    """
    if means is None:
        return np.ones(len(vectors[0]), np.float32)
    total = np.zeros(len(vectors[0]))
    count = 0
    for layer, metric, mean in zip(vectors, metrics, means, strict=True):
        lengths = squared_lengths(layer, metric)
        heads = lengths.shape[1]
        known = mean[:heads] > 0
        total += (lengths[:, known] / mean[:heads][known]).sum(axis=1)
        count += int(known.sum())
    relative = total / max(count, 1)
    # A vanishing token has no direction; nothing is learnt from it.
    weights: Array = np.where(relative > 1e-8, 1 / np.maximum(relative, 1e-8), 0.0)
    return weights.astype(np.float32)


def squared_lengths(vectors: Array, metric: Array) -> Array:
    """x^T M x by token and head: ``[T, Hk, D]`` and ``[Hk, D, D]`` to ``[T, Hk]``."""
    by_head = vectors.transpose(1, 0, 2)
    found: Array = np.einsum("htd,htd->th", by_head @ metric.astype(vectors.dtype), by_head)
    return np.maximum(found, 0.0)
