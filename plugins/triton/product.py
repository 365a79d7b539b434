"""Products of token vectors with the rows of an encoder: of ``project_joint`` and ``align``."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def encoder_product(
    vector_ptr, token, valid, run, run_stride, encoder_ptr, encoder_stride, length, component,
    components, DOT: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Sums of fp32 products, of tokens with components of a code.

    Args:
        vector_ptr: fp32; element k of a token is at token + k // run * run_stride + k % run.
        token: [BLOCK_T] offsets.
        valid: [BLOCK_T].
        run: elements that lie next to each other.
        run_stride: from a run to the next.
        encoder_ptr: fp16 or fp32 rows of ``length`` elements.
        encoder_stride: from a row to the next.
        length: of the sums.
        component: [BLOCK_R] rows of the encoder.
        components: rows from here on are masked.
        DOT: use tensor cores, with three tf32 products for fp32's precision; else BLOCK_T is 1.
        BLOCK_T: tokens.
        BLOCK_R: components.
        BLOCK_K: elements of a sum at a time.

    Returns:
        [BLOCK_T, BLOCK_R] fp32.
    """
    row_ptr = encoder_ptr + component[:, None].to(tl.int64) * encoder_stride
    if DOT:
        total = tl.zeros([BLOCK_T, BLOCK_R], tl.float32)
    else:
        partial = tl.zeros([BLOCK_R, BLOCK_K], tl.float32)
    for start in range(0, length, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        inside = k < length
        offset = k // run * run_stride + k % run
        wanted = (component < components)[:, None] & inside[None, :]
        row = tl.load(row_ptr + k[None, :], mask=wanted, other=0.0).to(tl.float32)
        mask = valid[:, None] & inside[None, :]
        vector = tl.load(vector_ptr + token[:, None] + offset[None, :], mask=mask, other=0.0)
        if DOT:
            total = tl.dot(vector, tl.trans(row), total, input_precision="tf32x3")
        else:
            partial += row * vector
    if not DOT:
        total = tl.sum(partial, 1)[None, :]
    return total
