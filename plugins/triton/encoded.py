"""Which tokens a call encodes, and where their vectors lie: docs/operator.md, "Coded modes"."""

from __future__ import annotations

import triton
import triton.language as tl

from minicache.plugins.triton.span import code_end


@triton.jit
def encoded_span(past_ptr, total_ptr, row, sinks, window):
    """Lengths of a batch row and the positions [first, end) that the call encodes.

    Returns:
        past, total, c0 (end of the codes before the call), first, end.
    """
    past = tl.load(past_ptr + row)
    total = tl.load(total_ptr + row)
    c0 = code_end(past, sinks, window)
    first = tl.maximum(c0, sinks)
    return past, total, c0, first, tl.maximum(code_end(total, sinks, window), first)


@triton.jit
def ring_slot(position, sinks, ring_slots):
    """Slot of ``exact_*`` in which a position lies, in coded modes."""
    return tl.where(position < sinks, position, sinks + (position - sinks) % ring_slots)


@triton.jit
def layer_pointer(
    layer, kind, key_0_ptr, key_1_ptr, key_2_ptr, key_3_ptr, key_4_ptr, key_5_ptr, key_6_ptr,
    key_7_ptr, value_0_ptr, value_1_ptr, value_2_ptr, value_3_ptr, value_4_ptr, value_5_ptr,
    value_6_ptr, value_7_ptr,
):  # fmt: skip
    """New keys (kind 0) or values of one of the launch's layers, 0..7."""
    key_ptr = key_0_ptr
    value_ptr = value_0_ptr
    if layer == 1:
        key_ptr = key_1_ptr
        value_ptr = value_1_ptr
    if layer == 2:
        key_ptr = key_2_ptr
        value_ptr = value_2_ptr
    if layer == 3:
        key_ptr = key_3_ptr
        value_ptr = value_3_ptr
    if layer == 4:
        key_ptr = key_4_ptr
        value_ptr = value_4_ptr
    if layer == 5:
        key_ptr = key_5_ptr
        value_ptr = value_5_ptr
    if layer == 6:
        key_ptr = key_6_ptr
        value_ptr = value_6_ptr
    if layer == 7:
        key_ptr = key_7_ptr
        value_ptr = value_7_ptr
    if kind == 1:
        key_ptr = value_ptr
    return key_ptr


@triton.jit
def load_vectors(
    new_ptr, exact_ptr, row, layer, head, position, past, valid, component, new_tokens, group_size,
    kv_heads, slots, sinks, ring_slots, D: tl.constexpr,
):  # fmt: skip
    """Components of tokens of one layer's own head, from the exact slots or new in this call.

    Args:
        new_ptr: T[B, S, Hk*D], the layer's.
        exact_ptr: E[B, G, Hk, slots, D].
        row: batch row.
        layer: of the group.
        head: of the layer.
        position: [tokens].
        past: length before the call.
        valid: [tokens, components].
        component: [components].
        new_tokens: S.
        group_size: G.
        kv_heads: Hk.
        slots: of exact_*.
        sinks: N.
        ring_slots: W + X.
        D: head size.

    Returns:
        [tokens, components] fp32, 0 where not valid.
    """
    token = position - past
    fresh = (token >= 0) & (token < new_tokens)
    start = (row.to(tl.int64) * new_tokens + token) * (kv_heads * D) + head * D
    arrived = tl.load(
        new_ptr + start[:, None] + component[None, :], mask=valid & fresh[:, None], other=0.0
    )
    slot = ring_slot(position, sinks, ring_slots)
    held = (token < 0) & (slot >= 0) & (slot < slots)
    vectors = (row.to(tl.int64) * group_size + layer) * kv_heads + head
    start = (vectors * slots + slot) * D
    cached = tl.load(
        exact_ptr + start[:, None] + component[None, :], mask=valid & held[:, None], other=0.0
    )
    return tl.where(fresh[:, None], arrived.to(tl.float32), cached.to(tl.float32))
