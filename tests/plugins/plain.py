"""The operator's meaning, written a second time with plain loops: what the reference is held to.

Nothing here uses the reference. Tokens are kept in growing lists; there are no slots, rings or
bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.helpers import Text

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


def plain_pair(
    layers: Sequence[Array], magnitude: str, bits: int, delta_bits: int, basis: Array | None
) -> list[Array]:
    """The same of a pair with deltas: each layer's own, by its own cosine, of the halfway merge.

    ``basis`` [rank, D], whose coefficients are fp16, stands in the place of ``delta_bits``.
    """
    lengths = [float(np.linalg.norm(x)) for x in layers]
    units = [np.asarray(x, float) / n for x, n in zip(layers, lengths, strict=True)]
    direction = plain_slerp(*units, 0.5)
    chosen = {"own": lengths, "upper": lengths[-1:] * 2, "blended": [sum(lengths) / 2] * 2}
    restored = []
    for unit, length in zip(units, chosen[magnitude], strict=True):
        cosine = float(unit @ direction)
        delta = unit - cosine * direction
        size = float(np.linalg.norm(delta))
        if basis is not None:
            kept = (basis.astype(float) @ (delta / size)).astype(np.float16).astype(float)
            stored = size * (kept @ basis.astype(float))
        elif delta_bits == 2:
            grid = np.array([-1.5, -0.5, 0.5, 1.5]) * size / np.sqrt(delta.size)
            stored = np.array([grid[np.argmin(np.abs(grid - x))] for x in delta])
        else:
            stored = size * plain_grid(delta / size, delta_bits)
        restored.append(length * (cosine * plain_grid(direction, bits) + stored))
    return restored


def plain_similarity(attributes: dict[str, Any], keys: Array, values: Array) -> float:
    """Similarity of one token from its ``[G, Hk, D]`` keys and values."""
    if len(keys) == 1:
        return 1.0
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


def plain_token(
    attributes: dict[str, Any], kind: str, array: Array, basis: Array | None = None
) -> Array:
    """Restores all layers' heads ``[G, Hk, D]`` of one token from its code; ``basis`` of deltas."""
    group, heads, _ = array.shape
    order = attributes[f"{kind}_head_permutation"] or list(range(heads)) * group
    out = np.zeros(array.shape, float)
    for h in range(heads):
        places = [(g, order[g * heads + h]) for g in range(group)]
        vectors, rule = [array[place] for place in places], attributes["magnitude"]
        bits, delta_bits = attributes[f"{kind}_bits"][0], attributes["delta_bits"]
        if delta_bits or basis is not None:
            own = None if basis is None else basis[h]
            restored = plain_pair(vectors, rule, bits, delta_bits, own)
        else:
            restored = plain_restored(vectors, attributes["slerp_t"], rule, bits)
        for place, vector in zip(places, restored, strict=True):
            out[place] = vector
    return out


# Takes kind, position and vectors ``[G, Hk, D]`` of a token there, or back.
Turn = Callable[[str, int, Array, bool], Array]


def plain_slerp_mode(
    attributes: dict[str, Any],
    text: Text,
    calls: list[tuple[int, int]],
    capacity: int = 6,
    turn: Turn = lambda kind, position, vectors, back: vectors,
    bases: dict[str, Array] | None = None,
) -> np.ndarray:
    """The same by plain loops: what each token is read as is decided from its position alone.

    Tokens are merged and compared where ``turn`` takes them; ``bases`` are those of deltas.
    """
    sinks, window = attributes["sinks"], attributes["window"]
    group, _, tokens, heads, size = text.query.shape
    full = {"key": text.key[:, 0], "value": text.value[:, 0]}
    coded = {kind: full[kind].copy() for kind in full}
    for kind, array in coded.items():
        for p in range(sinks, tokens):
            basis = (bases or {}).get(f"{kind}_delta_basis")
            merged = plain_token(attributes, kind, turn(kind, p, full[kind][:, p], False), basis)
            array[:, p] = turn(kind, p, merged, True)
    there = [{kind: turn(kind, p, full[kind][:, p], False) for kind in full} for p in range(tokens)]
    cosines = [plain_similarity(attributes, token["key"], token["value"]) for token in there]
    out = np.full((group, tokens, heads, size), np.nan)
    retained: set[int] = set()
    for past, new in calls:
        exact = set(range(min(sinks, past))) | set(range(max(sinks, past - window), past + new))
        full_reads = exact | retained
        for g in range(group):
            seen = {
                kind: [(full if p in full_reads else coded)[kind][g, p] for p in range(past + new)]
                for kind in full
            }
            out[g, past : past + new] = plain_attention(
                text.query[g, 0, past : past + new],
                seen["key"],
                seen["value"],
                past,
                scale=attributes["scale"],
                softcap=attributes["softcap"],
                local_window=attributes["local_window_size"],
                bias=None if text.bias is None else text.bias[0, :, past : past + new],
                sink=text.sink,
            )
        leaving = range(max(sinks, past - window), max(sinks, past + new - window))
        retained = plain_retained(attributes, cosines, retained, leaving, capacity)
    return out


def plain_retained(
    attributes: dict[str, Any],
    cosines: list[float],
    before: set[int],
    leaving: range,
    capacity: int,
) -> set[int]:
    """The retained set after a call, by the words of docs/operator.md."""
    policy = attributes["retention"]
    if policy == "budget":
        candidates = sorted(before | set(leaving), key=lambda p: (cosines[p], p))
        return set(candidates[:capacity])
    limit = attributes["retention_threshold"]
    if policy == "minmax":
        seen = cosines[attributes["sinks"] : max(leaving.stop, attributes["sinks"])]
        low, high = min(seen, default=0), max(seen, default=0)
        limit = low + (high - low) * attributes["retention_gamma"]
    chosen = [p for p in leaving if policy != "none" and cosines[p] < limit]
    return before | set(chosen[: capacity - len(before)])
