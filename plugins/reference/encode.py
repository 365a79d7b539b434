"""Writing: merge and encode the tokens that leave the window, then store the new ones exactly."""

from __future__ import annotations

import numpy as np

from minicache.exporter import schemas
from minicache.plugins.reference.align import aligned_heads, matched_heads
from minicache.plugins.reference.direction import encode_slerp
from minicache.plugins.reference.eviction import slot_map
from minicache.plugins.reference.frame import Tables
from minicache.plugins.reference.primitives import Array, to_magnitude_direction
from minicache.plugins.reference.retention import (
    group_similarity,
    update_range,
    update_retained,
)
from minicache.plugins.reference.state import (
    Attributes,
    Span,
    State,
    coded_positions,
    exact_slot,
    store_rows,
)
from minicache.plugins.reference.subspace import encode_subspace


def write_row(
    attributes: Attributes,
    state: State,
    row: int,
    span: Span,
    new_keys: Array,
    new_values: Array,
    tables: Tables,
) -> None:
    """Updates the state of one batch row after its attention.

    Args:
        attributes: of the writer.
        state: of the group; changed in place.
        row: batch row.
        span: its lengths.
        new_keys: ``[G, Hk, new, D]``, the valid new tokens of every layer.
        new_values: likewise.
        tables: the node's encoders, bases and ``rope_frequencies``, where it has them.
    """
    if attributes["mode"] != "exact":
        new = {"key": new_keys, "value": new_values}
        _encode_row(attributes, state, row, span, new, tables)
    slots = state["exact_key"].shape[3]
    if attributes["mode"] == "exact":
        first = max(span.past, span.total - slots) if attributes["local_window_size"] else span.past
        positions = np.arange(first, span.total)
    else:
        positions = np.arange(span.past, span.total)
        recent = positions >= span.total - attributes["ring_slots"]
        positions = positions[(positions < span.sinks) | recent]
    at = exact_slot(attributes, state, row, positions)
    for name, arrived in (("exact_key", new_keys), ("exact_value", new_values)):
        state[name][row][:, :, at] = arrived[:, :, positions - span.past].astype(state[name].dtype)


def _encode_row(
    attributes: Attributes,
    state: State,
    row: int,
    span: Span,
    new: dict[str, Array],
    tables: Tables,
) -> None:
    first, end = span.encoded
    positions = np.arange(first, end)
    slots = slot_map(attributes, state, row).slots(positions)
    full = {kind: _full_vectors(attributes, state, row, span, kind, new[kind]) for kind in new}
    merged = {}  # what slerp merges and compares, by code head
    for kind, vectors in full.items():
        if attributes["mode"] == "subspace":
            rows, magnitudes = encode_subspace(attributes, kind, vectors, positions, tables)
            encoded = {"code": rows, "magnitude": magnitudes}
        else:
            own = matched_heads(attributes, kind, vectors)
            aligned = schemas.is_aligned(attributes)
            merged[kind] = (
                aligned_heads(attributes, kind, vectors, positions, tables) if aligned else own
            )
            lengths = to_magnitude_direction(own)[0]
            encoded = encode_slerp(attributes, kind, merged[kind], lengths, tables)
        for name, array in encoded.items():
            if name in ("code", "delta"):
                store_rows(attributes, state, kind, row, slots, array, name)
            else:
                state[f"{kind}_{name}"][row][:, slots] = array
    if "retained_position" in state:
        _retain_row(attributes, state, row, span, full, merged)


def _full_vectors(
    attributes: Attributes, state: State, row: int, span: Span, kind: str, new: Array
) -> Array:
    """``[G, Hk, encoded, D]`` float64 in layer order: from the exact slots, or new in this call."""
    positions = np.arange(*span.encoded)
    cached = positions[positions < span.past]
    slots = exact_slot(attributes, state, row, cached)
    old = state[f"exact_{kind}"][row][:, :, slots].astype(np.float64)
    arrived = positions[positions >= span.past] - span.past
    return np.concatenate([old, new[:, :, arrived]], axis=2)


def _retain_row(
    attributes: Attributes,
    state: State,
    row: int,
    span: Span,
    full: dict[str, Array],
    merged: dict[str, Array],
) -> None:
    """Updates the side buffer of one row, and the signs of its magnitudes."""
    cosines = group_similarity(merged["key"], merged["value"], attributes["retention_scope"])
    first, end = span.encoded
    update = update_retained(
        state["retained_position"][row],
        state["retained_similarity"][row],
        (span.sinks, span.c0),
        (first, end),
        cosines,
        attributes["retention"],
        threshold=attributes["retention_threshold"],
        gamma=attributes["retention_gamma"],
        similarity_range=update_range(
            state["similarity_range"][row], span.sinks, (first, end), cosines
        ),
        extra=schemas.retained_extra(attributes),
    )
    state["retained_position"][row] = update.position
    state["retained_similarity"][row] = update.similarity
    for position, slot in update.written.items():
        for kind, vectors in full.items():
            buffer = state[f"retained_{kind}"]
            buffer[row, :, :, slot] = vectors[:, :, position - first].astype(buffer.dtype)
    coded = coded_positions(attributes, state, row, end)
    slots = slot_map(attributes, state, row).slots(coded)
    sign = np.where(np.isin(coded, update.active), -1, 1).astype(np.float16)[None, :, None]
    for kind in full:
        magnitudes = state[f"{kind}_magnitude"][row]
        magnitudes[:, slots] = np.copysign(magnitudes[:, slots], sign)
