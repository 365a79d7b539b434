"""Which head of another layer joins which head of a group's first layer.

Heads are numbered independently in every layer. Those that are alike code better together, so every
layer's heads are assigned to the first layer's, one to one (Kuhn's assignment problem).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

Array = npt.NDArray[Any]

CANDIDATES = 4  # per head: with 32 heads all pairs would be 1024 decompositions per layer


def energy_share(own: Array, other: Array, cross: Array) -> Array:
    """Share of the energy of two joined heads that their best D dimensions hold.

    Args:
        own: second moments ``[..., D, D]`` of the first head.
        other: of the second one.
        cross: first times second, ``[..., D, D]``.
    """
    size = own.shape[-1]
    upper = np.concatenate([own, cross], axis=-1)
    lower = np.concatenate([np.swapaxes(cross, -1, -2), other], axis=-1)
    eigenvalues = np.linalg.eigvalsh(np.concatenate([upper, lower], axis=-2))
    total = np.maximum(eigenvalues.sum(axis=-1), 1e-30)
    share: Array = eigenvalues[..., size:].sum(axis=-1) / total
    return share


def aligned_cosine(own: Array, other: Array, cross: Array) -> Array:
    """Cosine of two heads once the second one is turned to the first as well as can be.

    The best orthogonal A makes E[x^T A y] the sum of the singular values of E[x y^T].

    Args:
        own: second moments ``[..., D, D]`` of the first head.
        other: of the second one.
        cross: first times second, ``[..., D, D]``.
    """
    energy = np.einsum("...dd->...", own) * np.einsum("...dd->...", other)
    found: Array = np.linalg.norm(cross, "nuc", axis=(-2, -1)) / np.maximum(np.sqrt(energy), 1e-30)
    return found


def match_heads(
    own: Array,
    other: Array,
    cross: Array,
    alike: Callable[[Array, Array, Array], Array] = energy_share,
) -> tuple[int, ...]:
    """Assigns the heads of one layer to those of another.

    Args:
        own: second moments ``[Hk, D, D]`` of the first layer's heads.
        other: of the other layer's heads.
        cross: every head of the first with every head of the other, ``[Hk, Hk, D, D]``.
        alike: what the assignment makes as large as it can, 0..1 per pair.

    Returns:
        for each head of the first layer, the head of the other one.
    """
    heads = len(own)
    if heads == 1:
        return (0,)
    # The cross moments' Frobenius norms tell which pairs are worth a decomposition.
    scale = np.sqrt(np.einsum("hdd->h", own)[:, None] * np.einsum("hdd->h", other)[None])
    related = np.linalg.norm(cross, axis=(2, 3)) / np.maximum(scale, 1e-30)
    share = np.full((heads, heads), -1.0) + related * 1e-3
    for head in range(heads):
        likely = np.argsort(-related[head])[:CANDIDATES]
        share[head, likely] = alike(
            np.broadcast_to(own[head], (len(likely), *own.shape[1:])),
            other[likely],
            cross[head, likely],
        )
    _, assigned = linear_sum_assignment(share, maximize=True)
    return tuple(int(head) for head in assigned)
