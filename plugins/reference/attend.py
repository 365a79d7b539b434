"""Attention of new tokens over the cache and over themselves (docs/operator.md, "Attention")."""

from __future__ import annotations

import numpy as np

from minicache.exporter import schemas
from minicache.plugins.reference.align import restored_aligned
from minicache.plugins.reference.direction import restored_codes
from minicache.plugins.reference.eviction import slot_map
from minicache.plugins.reference.frame import Tables
from minicache.plugins.reference.primitives import Array
from minicache.plugins.reference.retention import active_slots
from minicache.plugins.reference.state import (
    Attributes,
    Span,
    State,
    coded_positions,
    exact_slot,
)
from minicache.plugins.reference.subspace import restored_subspace


def attention_weights(
    query: Array,
    key: Array,
    positions: Array,
    past: int,
    attributes: Attributes,
    bias: Array | None = None,
    sink: Array | None = None,
) -> Array:
    """How much one batch row's new tokens attend to keys in any order.

    Args:
        query: ``[new, H, D]`` float64; token i has position past + i.
        key: ``[Hk, tokens, D]`` float64, the cached and the new tokens.
        positions: ``[tokens]``, where each of them is.
        past: tokens in the cache before the call.
        attributes: ``scale``, ``softcap`` and ``local_window_size`` are used.
        bias: ``[H, >= new, >= total]``, indexed by new token and position.
        sink: ``[H]``, a logit that joins the sum of the softmax.

    Returns:
        ``[H, new, tokens]`` float64; rows of zeros where nothing is visible.
    """
    new, heads, _ = query.shape
    repeats = heads // key.shape[0]
    scores = attributes["scale"] * np.einsum("ihd,hjd->hij", query, np.repeat(key, repeats, axis=0))
    if attributes["softcap"] > 0:
        scores = attributes["softcap"] * np.tanh(scores / attributes["softcap"])
    if bias is not None:
        scores = scores + bias[:, :new][:, :, positions]
    distance = past + np.arange(new)[:, None] - positions[None, :]
    visible = distance >= 0
    if attributes["local_window_size"] > 0:
        visible &= distance < attributes["local_window_size"]
    scores = np.where(visible, scores, -np.inf)
    top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    logit = np.full((heads, 1, 1), -np.inf) if sink is None else sink[:, None, None]
    top = np.maximum(top, logit)
    top = np.where(np.isfinite(top), top, 0.0)
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True) + np.exp(logit - top)
    return np.asarray(weights / np.where(total > 0, total, 1.0))


def weighted_values(weights: Array, value: Array) -> Array:
    """Attention ``[new, H, D]`` of weights ``[H, new, tokens]`` over values ``[Hk, tokens, D]``."""
    repeats = len(weights) // len(value)
    attention: Array = np.einsum("hij,hjd->ihd", weights, np.repeat(value, repeats, axis=0))
    return attention


def cached_tokens(
    attributes: Attributes, state: State, row: int, span: Span, tables: Tables
) -> tuple[Array, Array, Array]:
    """Reads everything that one layer sees of the cache before the call.

    Args:
        attributes: of the layer's node.
        state: of the group.
        row: batch row.
        span: its lengths.
        tables: the node's decoders, bases and ``rope_frequencies``, where it has them.

    Returns:
        key ``[Hk, tokens, D]``, value likewise (float64), positions ``[tokens]``: exact tokens,
        then codes, then retained tokens.
    """
    exact = exact_positions(attributes, state, row, span)
    slots = exact_slot(attributes, state, row, exact)
    layer = attributes["group_slot"]
    kinds = ("key", "value")
    parts = [[state[f"exact_{kind}"][row, layer][:, slots].astype(np.float64)] for kind in kinds]
    positions = [exact]
    if attributes["mode"] != "exact":
        coded = coded_positions(attributes, state, row, span.c0)
        keep = np.ones(coded.size, bool)
        if "retained_position" in state:
            held = state["retained_position"][row]
            at = active_slots(
                held,
                state["retained_similarity"][row],
                (span.sinks, span.c0),
                attributes["retention"],
                max(0, held.size - schemas.retained_extra(attributes)),
            )
            keep = ~np.isin(coded, held[at])
            for part, kind in zip(parts, kinds, strict=True):
                part.append(state[f"retained_{kind}"][row, layer][:, at].astype(np.float64))
            positions.append(held[at])
        for part, kind in zip(parts, kinds, strict=True):
            if attributes["mode"] == "subspace":
                codes = restored_subspace(attributes, state, kind, row, span.c0, tables)
            elif schemas.is_aligned(attributes):
                codes = restored_aligned(attributes, state, kind, row, span.c0, tables)
            else:
                codes = restored_codes(attributes, state, kind, row, span.c0, tables)
            part.insert(1, codes[:, keep])
        positions.insert(1, coded[keep])
    key, value = (np.concatenate(part, axis=1) for part in parts)
    return key, value, np.concatenate(positions)


def exact_positions(attributes: Attributes, state: State, row: int, span: Span) -> Array:
    """Cached positions that are read from the exact slots."""
    if attributes["mode"] == "exact":
        slots, window = state["exact_key"].shape[3], attributes["local_window_size"]
        first = max(0, span.past - min(slots, window)) if window else 0
        positions = np.arange(first, span.past)
        return positions[slot_map(attributes, state, row).is_left(positions)]
    sinks = np.arange(min(span.sinks, span.past))
    return np.concatenate([sinks, np.arange(max(span.c0, span.sinks), span.past)])
