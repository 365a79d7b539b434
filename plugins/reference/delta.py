"""Deltas of a pair: what the shared direction of two layers lacks of each (docs/operator.md).

Halfway between two unit vectors u_0 and u_1 the merged direction e has the same cosine with both,
and u_0 - cos e = (u_0 - u_1) / 2 = -(u_1 - cos e): one vector serves both layers, once with either
sign.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from minicache.exporter import schemas
from minicache.plugins.reference.code import dequantise, pack_row, quantise, unpack_row
from minicache.plugins.reference.primitives import Array, to_magnitude_direction
from minicache.plugins.reference.state import (
    MAGNITUDE_LIMIT,
    Attributes,
    State,
    code_rows,
)

SHORTEST = 2.0**-16  # a shorter delta is rounding
SMALLEST_COSINE = 2.0**-6  # the magnitudes of layers that oppose each other stay above fp16's least


def split_pair(vectors: Array) -> tuple[Array, Array]:
    """What the direction halfway between two layers' vectors has of both, and what it lacks.

    Args:
        vectors: ``[2, ..., D]``.

    Returns:
        cosine ``[...]``, at least ``SMALLEST_COSINE``; where a vector is zero, 1.
        delta ``[..., D]``: (u_0 - u_1) / 2 of the unit vectors; zero where one is zero, and where
        it is shorter than ``SHORTEST``.
    """
    lengths, units = to_magnitude_direction(vectors)
    both = (lengths[0] > 0) & (lengths[1] > 0)
    half = np.linalg.norm(units[0] + units[1], axis=-1) / 2
    delta = (units[0] - units[1]) / 2
    kept = both & (np.linalg.norm(delta, axis=-1) >= SHORTEST)
    delta = np.where(kept[..., None], delta, 0.0)
    return np.where(both, np.maximum(half, SMALLEST_COSINE), 1.0), delta


def encode_delta(
    attributes: Attributes, delta: Array, cosine: Array, step: Array, basis: Array | None
) -> tuple[Array, Array]:
    """Encodes deltas into rows and the ratios that restore them.

    Args:
        attributes: of the writer.
        delta: ``[Hk, tokens, D]``, by code head.
        cosine: ``[Hk, tokens]`` of the direction with its layers.
        step: ``[Hk, tokens]`` of the direction's code, which its stored magnitudes contain.
        basis: ``[Hk, rank, D]`` where coefficients are kept instead of bits.

    Returns:
        rows ``[Hk, tokens, bytes]`` int8 and ratios ``[Hk, tokens, 1]`` fp16, saturated at 65504.
    """
    length, unit = to_magnitude_direction(delta)
    bits, _ = code = schemas.delta_code(attributes)
    kept = unit if basis is None else unit @ basis.astype(np.float64).swapaxes(1, 2)
    components, own = quantise(kept, bits)
    ratio = length / cosine * own / np.where(step > 0, step, 1.0)
    stored = np.minimum(ratio, MAGNITUDE_LIMIT).astype(np.float16)[..., None]
    return pack_row([components], code).view(np.int8), stored


def restored_delta(
    attributes: Attributes,
    state: State,
    kind: str,
    row: int,
    slots: Array,
    tables: Mapping[str, Array],
) -> Array:
    """What the deltas add to the stored values of directions, for one layer.

    Args:
        attributes: of the layer's node, whose place in the pair is the sign.
        state: of the pair.
        kind: ``key`` or ``value``.
        row: batch row.
        slots: ``[tokens]`` of codes.
        tables: with the basis, where there is one.

    Returns:
        ``[Hk, tokens, D]`` float64 by code head, before magnitudes.
    """
    code = schemas.delta_code(attributes)
    (components,) = unpack_row(code_rows(attributes, state, kind, row, "delta")[:, slots], code)
    values = dequantise(components, code[0])
    if attributes["delta_rank"]:
        values = values @ tables[f"{kind}_delta_basis"].astype(np.float64)
    sign = -1.0 if attributes["group_slot"] else 1.0
    ratio = state[f"{kind}_delta_ratio"][row][:, slots].astype(np.float64)
    return np.asarray(sign * ratio * values)
