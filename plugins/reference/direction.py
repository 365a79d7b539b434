"""``slerp``: the vectors of a group's layers as one code, and back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from minicache.exporter import schemas
from minicache.plugins.reference.code import dequantise, pack_row, quantise, unpack_row
from minicache.plugins.reference.delta import encode_delta, restored_delta, split_pair
from minicache.plugins.reference.eviction import slot_map
from minicache.plugins.reference.primitives import Array, merge_group
from minicache.plugins.reference.state import (
    MAGNITUDE_LIMIT,
    Attributes,
    State,
    code_rows,
    coded_positions,
    head_order,
)


def encode_slerp(
    attributes: Attributes, kind: str, vectors: Array, lengths: Array, tables: Mapping[str, Array]
) -> dict[str, Array]:
    """Encodes tokens of a group.

    Args:
        attributes: of the writer.
        kind: ``key`` or ``value``.
        vectors: ``[G, Hk, tokens, D]``, heads matched, in the space where they are merged.
        lengths: ``[G, Hk, tokens]`` that magnitudes are made of.
        tables: with the basis of deltas, where there is one.

    Returns:
        By the names of states, without ``key_`` or ``value_``: ``code`` rows ``[Hk, tokens,
        bytes]`` int8 and ``magnitude`` ``[Hk, tokens, G or 1]`` fp16, with the quantisation step
        folded in, saturated at 65504; with deltas also ``delta`` rows and ``delta_ratio``.
    """
    bits = attributes[f"{kind}_bits"]
    direction, magnitudes = merge_group(
        vectors, attributes["slerp_t"], attributes["magnitude"], lengths
    )
    components, step = quantise(direction, bits[0])
    encoded = {"code": pack_row([components], bits).view(np.int8)}
    if schemas.delta_code(attributes):
        cosine, delta = split_pair(vectors)
        basis = tables[f"{kind}_delta_basis"] if attributes["delta_rank"] else None
        rows, ratio = encode_delta(attributes, delta, cosine, step, basis)
        encoded |= {"delta": rows, "delta_ratio": ratio}
        magnitudes = magnitudes * cosine[..., None]
    stored = np.minimum(magnitudes * step[..., None], MAGNITUDE_LIMIT).astype(np.float16)
    return encoded | {"magnitude": stored}


def restored_codes(
    attributes: Attributes,
    state: State,
    kind: str,
    row: int,
    end: int,
    tables: Mapping[str, Array],
) -> Array:
    """Restores the ``coded_positions`` of one layer (paper Eq. 2).

    Args:
        attributes: of the layer's node.
        state: of the group.
        kind: ``key`` or ``value``.
        row: batch row.
        end: c0.
        tables: with the basis of deltas, where there is one.

    Returns:
        ``[Hk, tokens, D]`` float64 in the layer's own order of heads.
    """
    slots = slot_map(attributes, state, row).slots(coded_positions(attributes, state, row, end))
    bits, layer = attributes[f"{kind}_bits"], attributes["group_slot"]
    rows = code_rows(attributes, state, kind, row)[:, slots]
    (components,) = unpack_row(rows, bits)
    magnitudes = np.abs(state[f"{kind}_magnitude"][row][:, slots].astype(np.float64))
    own = magnitudes[..., layer if magnitudes.shape[-1] > 1 else 0]
    values = dequantise(components, bits[0])
    if schemas.delta_code(attributes):
        values = values + restored_delta(attributes, state, kind, row, slots, tables)
    restored = np.empty_like(values)
    restored[head_order(attributes, kind)[layer]] = own[..., None] * values
    return np.asarray(restored)
