"""The frame of a segment: what keys are moved into before they are coded, and out of again."""

from __future__ import annotations

from collections.abc import Mapping

from minicache.plugins.reference.primitives import Array
from minicache.plugins.reference.rope import rotate_by_positions, segment_offsets
from minicache.plugins.reference.state import Attributes

Tables = Mapping[str, Array]  # the node's constant inputs, by name


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
