"""Aligned slerp: every layer's vectors in a common basis, the code space, and back.

Block g of a code head's encoder turns the vector of layer g's matched head into the code space; the
decoder of a layer's head turns codes back. Keys are turned in the frame of their segment.
"""

from __future__ import annotations

import numpy as np

from minicache.plugins.reference.direction import restored_codes
from minicache.plugins.reference.frame import Tables, decoded, turn
from minicache.plugins.reference.primitives import Array
from minicache.plugins.reference.state import (
    Attributes,
    State,
    coded_positions,
    head_order,
)


def matched_heads(attributes: Attributes, kind: str, vectors: Array) -> Array:
    """Vectors ``[G, Hk, tokens, D]`` of each layer's own heads, by code head instead."""
    order = head_order(attributes, kind)
    return np.stack([layer[heads] for layer, heads in zip(vectors, order, strict=True)])


def aligned_heads(
    attributes: Attributes, kind: str, vectors: Array, positions: Array, tables: Tables
) -> Array:
    """Vectors of a group in the code space.

    Args:
        attributes: of the writer.
        kind: ``key`` or ``value``.
        vectors: ``[G, Hk, tokens, D]`` in each layer's own order of heads.
        positions: ``[tokens]``.
        tables: with encoder and, for segments, ``rope_frequencies``.

    Returns:
        ``[G, Hk, tokens, D]`` float64 by code head.
    """
    framed = turn(attributes, kind, vectors, positions, tables, -1)
    matched = matched_heads(attributes, kind, framed)
    encoder = tables[f"{kind}_encoder"].astype(np.float64)
    heads, size, _ = encoder.shape
    maps = encoder.reshape(heads, size, len(matched), size).transpose(2, 0, 3, 1)  # A_g^T
    with np.errstate(invalid="ignore"):  # infinite components become NaN
        aligned: Array = matched @ maps
    return aligned


def restored_aligned(
    attributes: Attributes, state: State, kind: str, row: int, end: int, tables: Tables
) -> Array:
    """Restores the ``coded_positions`` of one layer, keys at their own positions again.

    Args:
        attributes: of the layer's node.
        state: of the group.
        kind: ``key`` or ``value``.
        row: batch row.
        end: c0.
        tables: with the layer's decoder, its bases and, for segments, ``rope_frequencies``.

    Returns:
        ``[Hk, tokens, D]`` float64 in the layer's own order of heads.
    """
    positions = coded_positions(attributes, state, row, end)
    codes = restored_codes(attributes, state, kind, row, end, tables)
    return decoded(attributes, kind, codes, positions, tables)
