"""``subspace``: one code of R components for the joint vector of a group's layers and heads.

Slot s of layer g is the layer's own head ``head_permutation[g * Hk + s]``; code head hc holds the
J = Hk / Hc slots s with s * Hc / Hk = hc. Keys are coded in the frame of their segment.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicache.plugins.reference.code import dequantise, pack_row, unpack_row
from minicache.plugins.reference.eviction import slot_map
from minicache.plugins.reference.frame import Tables, decoded, turn
from minicache.plugins.reference.primitives import Array
from minicache.plugins.reference.state import (
    MAGNITUDE_LIMIT,
    Attributes,
    State,
    code_rows,
    coded_positions,
    head_order,
)


def quantise_components(y: Array, step: Array, bits: Sequence[int]) -> tuple[list[Array], Array]:
    """Quantises components relative to their length.

    Args:
        y: ``[..., R]`` in any float type; rounded to fp32, which is what the contract stores from.
        step: ``[R]`` or of the shape of ``y``.
        bits: ``bits, count, ...`` of widths 8, 4, 2; the counts add up to R.

    Returns:
        One uint8 array of levels ``[..., count]`` per segment, and the lengths m ``[...]`` float64.
        Where y is zero or not finite the levels are 2^(bits-1) and m is 0.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        y = y.astype(np.float32).astype(np.float64)
        y = np.where(np.isfinite(y).all(axis=-1, keepdims=True), y, 0.0)
    length = np.sqrt(np.sum(y * y, axis=-1))
    unit = y / np.where(length > 0, length, 1.0)[..., None] / step.astype(np.float64)
    borders = np.cumsum(bits[1::2])[:-1]
    segments = [
        np.clip(np.floor(part) + 2 ** (width - 1), 0, 2**width - 1).astype(np.uint8)
        for width, part in zip(bits[0::2], np.split(unit, borders, axis=-1), strict=True)
    ]
    return segments, length


def joint_vectors(attributes: Attributes, kind: str, vectors: Array) -> Array:
    """Joins the heads of all layers that share a code head.

    Args:
        attributes: of any node of the group.
        kind: ``key`` or ``value``: whose permutation.
        vectors: ``[G, Hk, tokens, D]`` in each layer's own order of heads.

    Returns:
        ``[Hc, tokens, G*J*D]``: layers outermost, then the slots of the code head, then D.
    """
    group, heads, tokens, size = vectors.shape
    order = head_order(attributes, kind)
    slots = np.stack([layer[own] for layer, own in zip(vectors, order, strict=True)])
    code_heads = attributes["code_heads"]
    each = heads // code_heads
    joint = slots.reshape(group, code_heads, each, tokens, size)
    return joint.transpose(1, 3, 0, 2, 4).reshape(code_heads, tokens, group * each * size)


def encode_subspace(
    attributes: Attributes, kind: str, vectors: Array, positions: Array, tables: Tables
) -> tuple[Array, Array]:
    """Encodes tokens of a group into code rows and stored magnitudes.

    Args:
        attributes: of the writer.
        kind: ``key`` or ``value``.
        vectors: ``[G, Hk, tokens, D]`` in each layer's own order of heads.
        positions: ``[tokens]``.
        tables: with encoder, step and, for segments, ``rope_frequencies``.

    Returns:
        rows ``[Hc, tokens, bytes]`` int8 and magnitudes ``[Hc, tokens, 1]`` fp16, saturated.
    """
    bits = attributes[f"{kind}_bits"]
    joint = joint_vectors(attributes, kind, turn(attributes, kind, vectors, positions, tables, -1))
    encoder = tables[f"{kind}_encoder"].astype(np.float64)
    with np.errstate(invalid="ignore"):
        y = joint @ encoder.swapaxes(1, 2)
    segments, length = quantise_components(y, tables[f"{kind}_step"][:, None], bits)
    stored = np.minimum(length, MAGNITUDE_LIMIT).astype(np.float16)[..., None]
    return pack_row(segments, bits).view(np.int8), stored


def restored_subspace(
    attributes: Attributes, state: State, kind: str, row: int, end: int, tables: Tables
) -> Array:
    """Restores the ``coded_positions`` of one layer, keys at their own positions again.

    Args:
        attributes: of the layer's node.
        state: of the group.
        kind: ``key`` or ``value``.
        row: batch row.
        end: c0.
        tables: with the layer's decoder and, for segments, ``rope_frequencies``.

    Returns:
        ``[Hk, tokens, D]`` float64 in the layer's own order of heads.
    """
    positions = coded_positions(attributes, state, row, end)
    slots = slot_map(attributes, state, row).slots(positions)
    bits, heads = attributes[f"{kind}_bits"], attributes["kv_num_heads"]
    segments = unpack_row(code_rows(attributes, state, kind, row)[:, slots], bits)
    levels = zip(bits[0::2], segments, strict=True)
    components = np.concatenate([dequantise(part, width) for width, part in levels], axis=-1)
    lengths = state[f"{kind}_magnitude"][row][:, slots].astype(np.float64)
    code_head = np.empty(heads, np.int64)  # of each of the layer's own heads
    own = head_order(attributes, kind)[attributes["group_slot"]]
    code_head[own] = np.arange(heads) * attributes["code_heads"] // heads
    codes = (lengths * components)[code_head]
    return decoded(attributes, kind, codes, positions, tables)
