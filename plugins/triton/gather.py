"""Gathers the vectors of the tokens that leave the window, heads matched, in fp32."""

from __future__ import annotations

import triton
import triton.language as tl

from minicache.plugins.triton.encoded import encoded_span, layer_pointer, load_vectors
from minicache.plugins.triton.rotation import partner, rotation_back


@triton.jit
def gather(
    key_0_ptr, key_1_ptr, key_2_ptr, key_3_ptr, key_4_ptr, key_5_ptr, key_6_ptr, key_7_ptr,
    value_0_ptr, value_1_ptr, value_2_ptr, value_3_ptr, value_4_ptr, value_5_ptr, value_6_ptr,
    value_7_ptr, exact_key_ptr, exact_value_ptr, frequency_ptr, permutation_ptr, past_ptr,
    total_ptr, gathered_ptr, batch, new_tokens, group_size, first_layer, kv_heads, slots, sinks,
    window, ring_slots, segment_length, pairs,
    D: tl.constexpr, INTERLEAVED: tl.constexpr, FRAMED: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Token i is position e0 + i of its row; entry s of a layer is its head permutation[g*Hk + s].

    Grid: (ceil(S / BLOCK_T), layers of this launch * Hk, 2*B), kinds innermost.

    Tensors:
        key_0_ptr: and so on: T[B, S, Hk*D] of the layers first_layer..first_layer + 7.
        value_0_ptr: likewise.
        exact_key_ptr: E[B, G, Hk, slots, D].
        exact_value_ptr: likewise.
        frequency_ptr: fp32[pairs]; FRAMED keys are turned into the frame of their segment.
        permutation_ptr: i32[2, G*Hk], of keys, then of values.
        past_ptr: i32[B].
        total_ptr: i32[B].
        gathered_ptr: fp32[2, B, S, G, Hk, D]; only the encoded tokens are written.
    """
    kind = tl.program_id(2) % 2
    row = tl.program_id(2) // 2
    past, _, _, first, end = encoded_span(past_ptr, total_ptr, row, sinks, window)
    index = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    position = first + index
    if first + tl.program_id(0) * BLOCK_T >= end:
        return
    layer = first_layer + tl.program_id(1) // kv_heads
    slot = tl.program_id(1) % kv_heads
    head = tl.load(permutation_ptr + (kind * group_size + layer) * kv_heads + slot)
    new_ptr = layer_pointer(
        layer - first_layer, kind, key_0_ptr, key_1_ptr, key_2_ptr, key_3_ptr, key_4_ptr,
        key_5_ptr, key_6_ptr, key_7_ptr, value_0_ptr, value_1_ptr, value_2_ptr, value_3_ptr,
        value_4_ptr, value_5_ptr, value_6_ptr, value_7_ptr,
    )  # fmt: skip
    exact_ptr = exact_key_ptr
    if kind == 1:
        exact_ptr = exact_value_ptr
    component = tl.arange(0, triton.next_power_of_2(D))
    inside = (position < end) & (index < new_tokens)
    valid = inside[:, None] & (component < D)[None, :]
    vector = load_vectors(
        new_ptr, exact_ptr, row, layer, head, position, past, valid, component, new_tokens,
        group_size, kv_heads, slots, sinks, ring_slots, D,
    )  # fmt: skip
    if FRAMED:  # noqa: SIM102 - of compile time
        if kind == 0:
            paired = partner(component, pairs, INTERLEAVED)
            other = load_vectors(
                new_ptr, exact_ptr, row, layer, head, position, past, valid, paired, new_tokens,
                group_size, kv_heads, slots, sinks, ring_slots, D,
            )  # fmt: skip
            offset = position // segment_length * segment_length
            cosine, sine = rotation_back(
                frequency_ptr, offset[:, None], component[None, :], pairs, INTERLEAVED
            )
            vector = vector * cosine + other * sine
    token = (kind * batch + row).to(tl.int64) * new_tokens + index
    start = ((token * group_size + layer) * kv_heads + slot) * D
    tl.store(gathered_ptr + start[:, None] + component[None, :], vector, mask=valid)
