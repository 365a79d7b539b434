"""Aligned slerp: x'_g = A_g x_g, every layer's vectors in the code space."""

from __future__ import annotations

import triton
import triton.language as tl

from minicache.plugins.triton.encoded import encoded_span
from minicache.plugins.triton.product import encoder_product


@triton.jit
def align(
    gathered_ptr, encoder_ptr, past_ptr, total_ptr, aligned_ptr, new_tokens, group_size, kv_heads,
    sinks, window,
    D: tl.constexpr, DOT: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Grid: (ceil(S / BLOCK_T), ceil(D / BLOCK_R), B*G*Hk).

    Tensors:
        gathered_ptr: fp32[B, S, G, Hk, D], keys or values, heads matched.
        encoder_ptr: fp16 or fp32 [Hk, D, G*D]; A_g is block g of the columns.
        past_ptr: i32[B].
        total_ptr: i32[B].
        aligned_ptr: fp32[B, S, G, Hk, D]; the encoded tokens are written.
    """
    head = tl.program_id(2) % kv_heads
    layer = tl.program_id(2) // kv_heads % group_size
    row = tl.program_id(2) // (kv_heads * group_size)
    _, _, _, first, end = encoded_span(past_ptr, total_ptr, row, sinks, window)
    count = tl.minimum(end - first, new_tokens)
    index = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    if tl.program_id(0) * BLOCK_T >= count:
        return
    token = row.to(tl.int64) * new_tokens + index
    start = ((token * group_size + layer) * kv_heads + head) * D
    component = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    encoder = encoder_ptr + (head.to(tl.int64) * D * group_size + layer) * D
    x = encoder_product(
        gathered_ptr, start, index < count, D, D, encoder, group_size * D, D, component, D, DOT,
        BLOCK_T, BLOCK_R, BLOCK_K,
    )  # fmt: skip
    mask = (index < count)[:, None] & (component < D)[None, :]
    tl.store(aligned_ptr + start[:, None] + component[None, :], x, mask=mask)
