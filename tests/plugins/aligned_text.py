"""Tables of a small aligned ``slerp`` group, and texts whose layers are alike only once aligned."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tests.helpers import Text, make_attributes
from tests.plugins.plain import Turn
from tests.plugins.plain_subspace import plain_rope

Array = np.ndarray
Tables = list[dict[str, Array]]


def aligned_attributes(**given: Any) -> dict[str, Any]:
    """Complete attributes of a small aligned ``slerp`` node."""
    return make_attributes(**{"mode": "slerp", "has_decoder": 1, **given})


def make_alignment(
    attributes: dict[str, Any],
    *,
    dtype: Any = np.float32,
    seed: int = 0,
    rotary: int | None = None,
    identity: bool = False,
) -> Tables:
    """Random orthogonal maps of every layer and head, the first layer's too.

    Args:
        attributes: of any node of the group.
        dtype: of encoders and decoders.
        seed: of the random numbers.
        rotary: components that RoPE turns; all of the head size unless given.
        identity: make all maps the identity.

    Returns:
        Per layer the constant inputs of its node.
    """
    rng = np.random.default_rng(seed)
    group, heads, size = (attributes[n] for n in ("group_size", "kv_num_heads", "head_size"))
    tables: Tables = [{} for _ in range(group)]
    for kind in ("key", "value"):
        maps = np.linalg.qr(rng.standard_normal((group, heads, size, size)))[0]
        if identity:
            maps[...] = np.eye(size)
        order = attributes[f"{kind}_head_permutation"] or list(range(heads)) * group
        for g in range(group):
            decoder = np.zeros((heads, size, size))
            for h in range(heads):
                decoder[order[g * heads + h]] = maps[g, h]
            tables[g][f"{kind}_decoder"] = decoder.astype(dtype)
        tables[-1][f"{kind}_encoder"] = np.concatenate(list(maps), axis=2).astype(dtype)
    if attributes["segment_length"]:
        pairs = (size if rotary is None else rotary) // 2
        rates = (100.0 ** (-np.arange(pairs) / pairs)).astype(np.float32)
        tables = [{**table, "rope_frequencies": rates} for table in tables]
    return tables


def plain_turn(attributes: dict[str, Any], tables: Tables) -> Turn:
    """What takes a token into the code space and back, vector by vector."""
    length, pairs = attributes["segment_length"], bool(attributes["rotary_interleaved"])

    def turn(kind: str, position: int, vectors: Array, back: bool) -> Array:
        offset = position // length * length if length and kind == "key" else 0
        out = np.zeros(vectors.shape, float)
        for g, h in np.ndindex(*vectors.shape[:2]):
            # The decoder of a layer's head is its map.
            own, vector = tables[g][f"{kind}_decoder"][h].astype(float), vectors[g, h]
            if back:
                vector = own.T @ vector
            if offset:
                rates = tables[g]["rope_frequencies"]
                vector = plain_rope(vector, offset if back else -offset, rates, pairs)
            out[g, h] = vector if back else own @ vector
        return out

    return turn


def turned_text(attributes: dict[str, Any], tables: Tables, text: Text) -> Text:
    """A text that the alignment takes to ``text``."""
    turn = plain_turn(attributes, tables)
    turned = {kind: getattr(text, kind).copy() for kind in ("key", "value")}
    for kind, array in turned.items():
        for row, position in np.ndindex(*array.shape[1:3]):
            array[:, row, position] = turn(kind, position, array[:, row, position], True)
    return dataclasses.replace(text, **turned)
