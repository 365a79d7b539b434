"""Merges the parts of a softmax into the attention output."""

from __future__ import annotations

import triton
import triton.language as tl

from minicache.plugins.triton.parts import merge_sums, part_weight
from minicache.plugins.triton.span import query_rows, row_lengths


@triton.jit
def finish(
    maximum_ptr, sum_ptr, coded_ptr, exact_ptr, value_decoder_ptr, sink_ptr, past_ptr, total_ptr,
    output_ptr, new_tokens, first, count, heads, kv_heads, splits, exact_splits, parts, components,
    stride, D: tl.constexpr, CODED: tl.constexpr, HAS_DECODER: tl.constexpr,
    HAS_SINK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Grid (cdiv(count * repeats, BLOCK_M), B * Hk).

    Tensors and numbers:
        maximum_ptr, sum_ptr: fp32 ``[B, count, H, parts]``: highest score (times log2 e) and sum of
            weights of each part; the parts of codes, ``splits`` of them, come first.
        coded_ptr: fp32 ``[B, count, H, splits, stride]``, with CODED; not written, and not read,
            where a part's maximum is -inf.
        exact_ptr: fp32 ``[B, count, H, exact_splits, D]``.
        value_decoder_ptr: fp16 or fp32 ``[Hk, components, D]``, with HAS_DECODER; without one codes
            have D components.
        sink_ptr: T ``[H]``, with HAS_SINK: logits that join the sum.
        past_ptr, total_ptr: int32 ``[B]``.
        output_ptr: T ``[B, S, H*D]``, written for the new tokens [first, first + count): zeros in
            padded rows and where nothing was visible.
        new_tokens: S; heads, kv_heads: H, Hk.
        BLOCK_M: rows (new token, query head); BLOCK_R: components at a time.
    """
    row = tl.program_id(1) // kv_heads
    kv_head = tl.program_id(1) % kv_heads
    _, new = row_lengths(past_ptr, total_ptr, row, new_tokens)
    repeats = heads // kv_heads
    first_row = tl.program_id(0) * BLOCK_M
    token, head, valid = query_rows(first_row, kv_head, first, count, new, repeats, BLOCK_M)
    out_row = (row * count + token).to(tl.int64) * heads + head
    PAD: tl.constexpr = triton.next_power_of_2(D)
    component = tl.arange(0, PAD)
    filled = component < D
    reference, total = merge_sums(
        maximum_ptr, sum_ptr, sink_ptr, out_row, head, parts, valid, BLOCK_M, HAS_SINK
    )
    out = tl.zeros([BLOCK_M, PAD], tl.float32)
    for part in range(exact_splits):
        weight = part_weight(maximum_ptr, out_row * parts + splits + part, reference, valid)
        at = (out_row * exact_splits + part)[:, None] * D + component[None, :]
        known = (weight > 0)[:, None] & filled[None, :]
        out += tl.load(exact_ptr + at, mask=known, other=0.0) * weight[:, None]
    if CODED:
        if HAS_DECODER:
            table_ptr = value_decoder_ptr + kv_head.to(tl.int64) * components * D
            for start in range(0, components, BLOCK_R):
                r = start + tl.arange(0, BLOCK_R)
                inside = r < components
                codes = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
                codes = add_coded(
                    codes, coded_ptr, maximum_ptr, out_row, r, inside, reference, valid, splits,
                    parts, stride,
                )  # fmt: skip
                table = tl.load(
                    table_ptr + r[:, None] * D + component[None, :],
                    mask=inside[:, None] & filled[None, :],
                    other=0.0,
                )
                # Three products of tf32 are as good as fp32.
                out = tl.dot(codes, table.to(tl.float32), out, input_precision="tf32x3")
        else:
            out = add_coded(
                out, coded_ptr, maximum_ptr, out_row, component, filled, reference, valid, splits,
                parts, stride,
            )  # fmt: skip
    out = tl.where((total > 0)[:, None], out / tl.where(total > 0, total, 1.0)[:, None], 0.0)
    out_at = (row * new_tokens + first + token).to(tl.int64) * heads + head
    tl.store(
        output_ptr + out_at[:, None] * D + component[None, :],
        tl.where(valid[:, None], out, 0.0).to(output_ptr.dtype.element_ty),
        mask=(token < count)[:, None] & filled[None, :],
    )


@triton.jit
def add_coded(
    sums, coded_ptr, maximum_ptr, out_row, component, inside, reference, valid, splits, parts,
    stride,
):  # fmt: skip
    """Adds the components of all parts of codes, weighed, to ``sums`` fp32 ``[M, components]``."""
    for part in range(splits):
        weight = part_weight(maximum_ptr, out_row * parts + part, reference, valid)
        at = (out_row * splits + part)[:, None] * stride + component[None, :]
        known = (weight > 0)[:, None] & inside[None, :]
        sums += tl.load(coded_ptr + at, mask=known, other=0.0) * weight[:, None]
    return sums
