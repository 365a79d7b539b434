"""Vectors of the tokens that a call retains, into the side buffer."""

from __future__ import annotations

import triton
import triton.language as tl

from minicache.plugins.triton.encoded import encoded_span, layer_pointer, load_vectors


@triton.jit
def retain_store(
    key_0_ptr, key_1_ptr, key_2_ptr, key_3_ptr, key_4_ptr, key_5_ptr, key_6_ptr, key_7_ptr,
    value_0_ptr, value_1_ptr, value_2_ptr, value_3_ptr, value_4_ptr, value_5_ptr, value_6_ptr,
    value_7_ptr, exact_key_ptr, exact_value_ptr, retained_key_ptr, retained_value_ptr, slot_ptr,
    past_ptr, total_ptr, new_tokens, group_size, first_layer, kv_heads, slots, retained, sinks,
    window, ring_slots,
    D: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """After ``retain``, before ``store``. Grid: (ceil(S / BLOCK_T), layers here * Hk, 2*B).

    Tensors:
        key_0_ptr: and so on: T[B, S, Hk*D] of the layers first_layer..first_layer + 7.
        value_0_ptr: likewise.
        exact_key_ptr: E[B, G, Hk, slots, D].
        exact_value_ptr: likewise.
        retained_key_ptr: E[B, G, Hk, P, D].
        retained_value_ptr: likewise.
        slot_ptr: i32[B, S]: the slot of each encoded token that is stored, else -1.
        past_ptr: i32[B].
        total_ptr: i32[B].
    """
    kind = tl.program_id(2) % 2
    row = tl.program_id(2) // 2
    past, _, _, first, end = encoded_span(past_ptr, total_ptr, row, sinks, window)
    if first + tl.program_id(0) * BLOCK_T >= end:
        return
    index = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    inside = (first + index < end) & (index < new_tokens)
    at = row.to(tl.int64) * new_tokens + index
    target = tl.load(slot_ptr + at, mask=inside, other=-1)
    target = tl.where(target < retained, target, -1)
    if tl.max(target, 0) < 0:
        return
    layer = tl.program_id(1) // kv_heads
    head = tl.program_id(1) % kv_heads
    new_ptr = layer_pointer(
        layer, kind, key_0_ptr, key_1_ptr, key_2_ptr, key_3_ptr, key_4_ptr, key_5_ptr, key_6_ptr,
        key_7_ptr, value_0_ptr, value_1_ptr, value_2_ptr, value_3_ptr, value_4_ptr, value_5_ptr,
        value_6_ptr, value_7_ptr,
    )  # fmt: skip
    exact_ptr = exact_key_ptr
    retained_ptr = retained_key_ptr
    if kind == 1:
        exact_ptr = exact_value_ptr
        retained_ptr = retained_value_ptr
    component = tl.arange(0, triton.next_power_of_2(D))
    mask = (target >= 0)[:, None] & (component < D)[None, :]
    vector = load_vectors(
        new_ptr, exact_ptr, row, first_layer + layer, head, first + index, past, mask, component,
        new_tokens, group_size, kv_heads, slots, sinks, ring_slots, D,
    )  # fmt: skip
    vectors = (row.to(tl.int64) * group_size + first_layer + layer) * kv_heads + head
    start = (vectors * retained + target) * D
    tl.store(
        retained_ptr + start[:, None] + component[None, :],
        vector.to(retained_ptr.dtype.element_ty),
        mask=mask,
    )
