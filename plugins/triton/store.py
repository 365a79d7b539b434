"""Writes the last new tokens into the exact slots, after all that reads them."""

from __future__ import annotations

import triton
import triton.language as tl

from minicache.plugins.triton.encoded import layer_pointer, ring_slot
from minicache.plugins.triton.slots import slot_of

NO_SEGMENTS = tl.constexpr(1 << 30)  # exact keys have no frame


@triton.jit
def store(
    key_0_ptr, key_1_ptr, key_2_ptr, key_3_ptr, key_4_ptr, key_5_ptr, key_6_ptr, key_7_ptr,
    value_0_ptr, value_1_ptr, value_2_ptr, value_3_ptr, value_4_ptr, value_5_ptr, value_6_ptr,
    value_7_ptr, exact_key_ptr, exact_value_ptr, past_ptr, total_ptr, evicted_ptr, new_tokens,
    group_size, first_layer, kv_heads, slots, sinks, ring_slots, capacity,
    D: tl.constexpr, MODE: tl.constexpr, EVICTS: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Grid: (ceil(S / BLOCK_T), layers of this launch * Hk, 2*B), kinds innermost.

    Tensors:
        key_0_ptr: and so on: T[B, S, Hk*D] of the layers first_layer..first_layer + 7.
        value_0_ptr: likewise.
        exact_key_ptr: E[B, G, Hk, slots, D].
        exact_value_ptr: likewise.
        past_ptr: i32[B].
        total_ptr: i32[B].
        evicted_ptr: i32[B, 2]; EVICTS.

    Constants:
        MODE: 0 exact, 1 exact with a sliding window (a ring of ``slots``), 2 coded.
        EVICTS: with MODE 0, as of ``slots``.
    """
    kind = tl.program_id(2) % 2
    row = tl.program_id(2) // 2
    past = tl.load(past_ptr + row)
    total = tl.load(total_ptr + row)
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    position = past + token
    if past + tl.program_id(0) * BLOCK_T >= total:
        return
    stays = (position < total) & (token < new_tokens)
    if MODE == 0:
        slot = slot_of(position, evicted_ptr, row, 1, NO_SEGMENTS, 0, EVICTS)
        stays &= slot < capacity
    elif MODE == 1:
        slot = position % slots
        stays &= position >= total - slots
    else:
        slot = ring_slot(position, sinks, ring_slots)
        stays &= (position < sinks) | (position >= total - ring_slots)
    stays &= (slot >= 0) & (slot < slots)
    layer = tl.program_id(1) // kv_heads
    head = tl.program_id(1) % kv_heads
    new_ptr = layer_pointer(
        layer, kind, key_0_ptr, key_1_ptr, key_2_ptr, key_3_ptr, key_4_ptr, key_5_ptr, key_6_ptr,
        key_7_ptr, value_0_ptr, value_1_ptr, value_2_ptr, value_3_ptr, value_4_ptr, value_5_ptr,
        value_6_ptr, value_7_ptr,
    )  # fmt: skip
    exact_ptr = exact_key_ptr
    if kind == 1:
        exact_ptr = exact_value_ptr
    component = tl.arange(0, triton.next_power_of_2(D))
    mask = stays[:, None] & (component < D)[None, :]
    source = (row.to(tl.int64) * new_tokens + token) * (kv_heads * D) + head * D
    vector = tl.load(new_ptr + source[:, None] + component[None, :], mask=mask, other=0.0)
    vectors = (row.to(tl.int64) * group_size + first_layer + layer) * kv_heads + head
    target = (vectors * slots + slot) * D
    element: tl.constexpr = exact_ptr.dtype.element_ty
    if element != vector.dtype:
        vector = vector.to(tl.float32).to(element)
    tl.store(exact_ptr + target[:, None] + component[None, :], vector, mask=mask)
