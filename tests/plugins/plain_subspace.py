"""``subspace`` by the words of docs/operator.md, in plain loops apart from the reference."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.helpers import Text
from tests.plugins.plain import plain_attention

Array = np.ndarray


def plain_rope(vector: Array, position: float, frequencies: Array, interleaved: bool) -> Array:
    """Rotates one vector ``[D]`` pair by pair, as complex numbers."""
    rotated = np.array(vector, float)
    pairs = len(frequencies)
    for i in range(pairs):
        first, second = (2 * i, 2 * i + 1) if interleaved else (i, i + pairs)
        angle = position * float(frequencies[i])
        turned = complex(vector[first], vector[second]) * complex(math.cos(angle), math.sin(angle))
        rotated[first], rotated[second] = turned.real, turned.imag
    return rotated


def plain_code(
    y: Array, step: Array, bits: tuple[int, ...]
) -> tuple[list[int], list[float], float]:
    """Levels, the values they stand for, and the stored magnitude of one component vector."""
    widths = [width for width, n in zip(bits[::2], bits[1::2], strict=True) for _ in range(n)]
    y = np.asarray(y, np.float32).astype(float)
    length = math.sqrt(sum(x * x for x in y))
    levels = []
    for x, size, width in zip(y, step, widths, strict=True):
        level = math.floor(x / (length * float(size))) if length else 0
        levels.append(min(max(level + 2 ** (width - 1), 0), 2**width - 1))
    values = [k - (2**width - 1) / 2 for k, width in zip(levels, widths, strict=True)]
    return levels, values, float(np.float16(min(length, 65504.0)))


def plain_joint(attributes: dict[str, Any], kind: str, array: Array, code_head: int) -> Array:
    """The joint vector of one code head of one token ``[G, Hk, D]``."""
    group, heads, size = array.shape
    slots = heads // attributes["code_heads"]
    order = attributes[f"{kind}_head_permutation"] or list(range(heads)) * group
    joint = np.zeros(group * slots * size)
    for g in range(group):
        for j in range(slots):
            own = order[g * heads + code_head * slots + j]
            for d in range(size):
                joint[(g * slots + j) * size + d] = array[g, own, d]
    return joint


def plain_token(
    attributes: dict[str, Any],
    kind: str,
    array: Array,
    position: int,
    tables: list[dict[str, Array]],
) -> Array:
    """Restores all layers' heads ``[G, Hk, D]`` of the token at ``position`` from its code."""
    group, heads, _ = array.shape
    code_heads, length = attributes["code_heads"], attributes["segment_length"]
    offset = position // length * length if length and kind == "key" else 0

    def turn(vectors: Array, by: int) -> Array:
        if not by:
            return np.array(vectors, float)
        rates, pairs = tables[0]["rope_frequencies"], bool(attributes["rotary_interleaved"])
        flat = [plain_rope(v, by, rates, pairs) for v in vectors.reshape(-1, vectors.shape[-1])]
        return np.stack(flat).reshape(vectors.shape)

    framed, order = turn(array, -offset), attributes[f"{kind}_head_permutation"]
    order = order or list(range(heads)) * group
    restored = np.zeros(array.shape)
    for s in range(heads):
        code_head = s * code_heads // heads
        encoder = tables[-1][f"{kind}_encoder"][code_head].astype(float)
        y = encoder @ plain_joint(attributes, kind, framed, code_head)
        step = tables[-1][f"{kind}_step"][code_head]
        _, values, magnitude = plain_code(y, step, attributes[f"{kind}_bits"])
        for g in range(group):
            own = order[g * heads + s]
            decoder = tables[g][f"{kind}_decoder"][own].astype(float)
            restored[g, own] = magnitude * (np.array(values) @ decoder)
    return turn(restored, offset)


def plain_subspace_mode(
    attributes: dict[str, Any],
    text: Text,
    calls: list[tuple[int, int]],
    tables: list[dict[str, Array]],
) -> Array:
    """Attention ``[G, T, H, D]``: what each token is read as is decided from its position alone."""
    sinks, window = attributes["sinks"], attributes["window"]
    group, _, tokens, heads, size = text.query.shape
    full = {"key": text.key[:, 0], "value": text.value[:, 0]}
    coded = {kind: full[kind].copy() for kind in full}
    for kind, array in coded.items():
        for p in range(sinks, tokens):
            array[:, p] = plain_token(attributes, kind, full[kind][:, p], p, tables)
    out = np.full((group, tokens, heads, size), np.nan)
    for past, new in calls:
        exact = set(range(min(sinks, past))) | set(range(max(sinks, past - window), past + new))
        for g in range(group):
            seen = {
                kind: [(full if p in exact else coded)[kind][g, p] for p in range(past + new)]
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
    return out
