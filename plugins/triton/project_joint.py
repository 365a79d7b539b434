"""Components of joint vectors: y = encoder[hc] x of docs/operator.md, ``subspace``."""

from __future__ import annotations

import triton
import triton.language as tl

from minicache.plugins.triton.encoded import encoded_span
from minicache.plugins.triton.product import encoder_product


@triton.jit
def project_joint(
    gathered_ptr, encoder_ptr, past_ptr, total_ptr, joint_ptr, new_tokens, group_size, kv_heads,
    code_heads, components, stride, sinks, window,
    D: tl.constexpr, DOT: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Grid: (ceil(S / BLOCK_T), ceil(R / BLOCK_R), B*Hc).

    Tensors:
        gathered_ptr: fp32[B, S, G, Hk, D], keys or values, in the order of slots.
        encoder_ptr: fp16 or fp32 [Hc, R, G*J*D].
        past_ptr: i32[B].
        total_ptr: i32[B].
        joint_ptr: fp32[B, S, Hc, stride]; R components of the encoded tokens are written.
    """
    row = tl.program_id(2) // code_heads
    code_head = tl.program_id(2) % code_heads
    _, _, _, first, end = encoded_span(past_ptr, total_ptr, row, sinks, window)
    count = tl.minimum(end - first, new_tokens)
    index = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    if tl.program_id(0) * BLOCK_T >= count:
        return
    slots = kv_heads // code_heads
    length = group_size * slots * D
    token = row.to(tl.int64) * new_tokens + index
    component = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    y = encoder_product(
        gathered_ptr + code_head * slots * D, token * (group_size * kv_heads * D), index < count,
        slots * D, kv_heads * D, encoder_ptr + code_head.to(tl.int64) * components * length, length,
        length, component, components, DOT, BLOCK_T, BLOCK_R, BLOCK_K,
    )  # fmt: skip
    start = (token * code_heads + code_head) * stride
    mask = (index < count)[:, None] & (component < components)[None, :]
    tl.store(joint_ptr + start[:, None] + component[None, :], y, mask=mask)
