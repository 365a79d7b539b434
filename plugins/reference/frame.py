"""The frame of a segment: what keys are moved into before they are coded, and out of again."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from minicache.plugins.reference.primitives import Array
from minicache.plugins.reference.rope import rotate_by_positions, segment_offsets
from minicache.plugins.reference.state import Attributes

Tables = Mapping[str, Array]  # the node's constant inputs, by name


def decoded(
    attributes: Attributes, kind: str, codes: Array, positions: Array, tables: Tables
) -> Array:
    """Restores vectors from codes in the code space, keys at their own positions again.

    Attending to R(o) decoder^T c is the same as mapping each query by decoder R(-o).

    Args:
        attributes: of the layer's node.
        kind: ``key`` or ``value``.
        codes: ``[Hk, tokens, R]`` with their magnitudes, in the layer's own order of heads.
        positions: ``[tokens]``.
        tables: with the layer's decoder and, for segments, ``rope_frequencies``.

    Returns:
        ``[Hk, tokens, D]`` float64.
    """
    decoder = tables[f"{kind}_decoder"].astype(np.float64)
    return turn(attributes, kind, codes @ decoder, positions, tables, 1)


def turn(
    attributes: Attributes, kind: str, vectors: Array, positions: Array, tables: Tables, sign: int
) -> Array:
    """Moves keys out of the frame of their segments, or into it; values have none.

    Args:
        attributes: of any node of the group.
        kind: ``key`` or ``value``.
        vectors: ``[..., tokens, D]``.
        positions: ``[tokens]``.
        tables: with ``rope_frequencies`` where keys are coded in segments.
        sign: 1 moves out, -1 into it.

    Returns:
        ``[..., tokens, D]``.
    """
    if kind != "key" or attributes["segment_length"] == 0:
        return vectors
    offsets = sign * segment_offsets(positions, attributes["segment_length"])
    interleaved = bool(attributes["rotary_interleaved"])
    return rotate_by_positions(vectors, offsets, tables["rope_frequencies"], interleaved)
