"""The operator's meaning, written a second time with plain loops: what the reference is held to.

Nothing here uses the reference. Tokens are kept in growing lists; there are no slots, rings or
bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray


def plain_attention(
    query: Array,
    keys: Sequence[Array],
    values: Sequence[Array],
    past: int,
    *,
    scale: float,
    softcap: float = 0.0,
    local_window: int = 0,
    bias: Array | None = None,
    sink: Array | None = None,
) -> Array:
    """Attends new tokens to a list of all tokens, one score at a time.

    Args:
        query: ``[new, H, D]``.
        keys: per position ``[Hk, D]``, the new ones included.
        values: likewise.
        past: position of the first new token.
        scale: of the scores.
        softcap: 0 off.
        local_window: 0 off.
        bias: ``[H, new, positions]``.
        sink: ``[H]``.
    """
    new, heads, _ = query.shape
    repeats = heads // len(keys[0])
    out = np.zeros(query.shape, np.float64)
    for i in range(new):
        for h in range(heads):
            numerator, denominator = 0.0, math.exp(sink[h]) if sink is not None else 0.0
            for j in range(past + i + 1):
                if local_window and past + i - j >= local_window:
                    continue
                a, b = query[i, h].astype(float), np.asarray(keys[j][h // repeats], float)
                score = scale * float(a @ b)
                if softcap:
                    score = softcap * math.tanh(score / softcap)
                if bias is not None:
                    score += float(bias[h, i, j])
                weight = math.exp(score)
                numerator = numerator + weight * np.asarray(values[j][h // repeats], float)
                denominator += weight
            out[i, h] = numerator / denominator
    return out


def plain_slerp(a: Array, b: Array, t: float) -> Array:
    """SLERP of two unit vectors by the textbook formula with arccos."""
    angle = math.acos(max(-1.0, min(1.0, float(a @ b))))
    return (math.sin((1 - t) * angle) * a + math.sin(t * angle) * b) / math.sin(angle)


def plain_grid(direction: Array, bits: int) -> Array:
    """Rounds each component to the nearest value of the mid-rise grid of ``bits`` bits."""
    if bits == 16:
        return direction.astype(np.float16).astype(float)
    step = np.abs(direction).max() / ((2**bits - 1) / 2)
    grid = (np.arange(2**bits) - (2**bits - 1) / 2) * step
    return np.array([grid[np.argmin(np.abs(grid - x))] for x in direction])


def plain_restored(layers: Sequence[Array], t: float, magnitude: str, bits: int) -> list[Array]:
    """Merges and restores the vectors ``[D]`` of one token and head, one per layer."""
    lengths = [float(np.linalg.norm(x)) for x in layers]
    units = [np.asarray(x, float) / n for x, n in zip(layers, lengths, strict=True)]
    direction, blended = units[0], lengths[0]
    for k in range(1, len(layers)):
        weight = 2 * t / (k + 1)
        direction = plain_slerp(direction, units[k], weight)
        blended = (1 - weight) * blended + weight * lengths[k]
    chosen = {"own": lengths, "upper": lengths[-1:] * len(layers)}
    magnitudes = chosen.get(magnitude, [blended] * len(layers))
    return [m * plain_grid(direction, bits) for m in magnitudes]


def plain_similarity(attributes: dict[str, Any], keys: Array, values: Array) -> float:
    """Similarity of one token from its ``[G, Hk, D]`` keys and values."""
    cosines = []
    for kind, array in (("key", keys), ("value", values)):
        group, heads, _ = array.shape
        order = attributes[f"{kind}_head_permutation"] or list(range(heads)) * group
        for g in range(group - 1):
            for h in range(heads):
                a = array[g, order[g * heads + h]].astype(float)
                b = array[g + 1, order[(g + 1) * heads + h]].astype(float)
                cosines.append(float(a @ b) / float(np.linalg.norm(a) * np.linalg.norm(b)))
    return min(cosines) if attributes["retention_scope"] == "any-head" else float(np.mean(cosines))


def plain_token(attributes: dict[str, Any], kind: str, array: Array) -> Array:
    """Restores all layers' heads ``[G, Hk, D]`` of one token from its code."""
    group, heads, _ = array.shape
    order = attributes[f"{kind}_head_permutation"] or list(range(heads)) * group
    out = np.zeros(array.shape, float)
    for h in range(heads):
        places = [(g, order[g * heads + h]) for g in range(group)]
        restored = plain_restored(
            [array[place] for place in places],
            attributes["slerp_t"],
            attributes["magnitude"],
            attributes[f"{kind}_bits"][0],
        )
        for place, vector in zip(places, restored, strict=True):
            out[place] = vector
    return out
