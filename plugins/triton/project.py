"""Queries to the code space of a kv head, once per segment: a = scale * decoder R(-o) q."""

from __future__ import annotations

import triton
import triton.language as tl

from minicache.plugins.triton.planes import clamp_half, level_middle
from minicache.plugins.triton.rotation import partner, rotation_back
from minicache.plugins.triton.slots import end_slot, first_slot
from minicache.plugins.triton.span import code_end, query_rows, row_lengths


@triton.jit
def project(
    query_ptr, decoder_ptr, frequency_ptr, past_ptr, total_ptr, evicted_ptr, projected_ptr,
    offset_ptr, new_tokens, first, count, heads, kv_heads, segments, pairs, sinks, window,
    segment_length, c16, c8, c4, c2, stride, scale, D: tl.constexpr, HAS_DECODER: tl.constexpr,
    INTERLEAVED: tl.constexpr, EVICTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Grid (cdiv(count * repeats, BLOCK_M), segments, B * Hk).

    Tensors and numbers:
        query_ptr: T ``[B, S, H*D]``.
        decoder_ptr: fp16 or fp32 ``[Hk, R, D]``; unused without a decoder, where R = D.
        frequency_ptr: fp32 ``[pairs]``; unused with pairs = 0.
        past_ptr, total_ptr: int32 ``[B]``; evicted_ptr, EVICTS: see ``slots``.
        projected_ptr: fp16 ``[B, count, H, segments, stride]``, written: a, rounded, saturated.
        offset_ptr: fp32 ``[B, count, H, segments]``, written: the sum of middle * a over the
            rounded a, with the middle of each component's grid: what a score of unsigned levels is
            too large by.
        new_tokens: S; first, count: the new tokens of this launch.
        heads, kv_heads: H, Hk.
        segments: of the capacity, with EVICTS of the longest text; those that hold no code are left
            alone.
        pairs: D_rot / 2; 0 leaves queries as they are.
        sinks, window, segment_length: N, W, L.
        c16, c8, c4, c2: components of each width; they add up to R.
        stride: R rounded up to a multiple of 16.
        BLOCK_M: rows (new token, query head); BLOCK_R: components at a time.
    """
    segment = tl.program_id(1)
    row = tl.program_id(2) // kv_heads
    kv_head = tl.program_id(2) % kv_heads
    repeats = heads // kv_heads
    past, new = row_lengths(past_ptr, total_ptr, row, new_tokens)
    first_row = tl.program_id(0) * BLOCK_M
    begin = first_slot(segment, evicted_ptr, row, segments, segment_length, EVICTS)
    end = end_slot(code_end(past, sinks, window), evicted_ptr, row, segments, EVICTS)
    if EVICTS:  # of some segments nothing is left
        after = first_slot(segment + 1, evicted_ptr, row, segments, segment_length, EVICTS)
        end = tl.minimum(end, after)
    coded = begin < end
    if not (coded & (first + first_row // repeats < new)):
        return
    token, head, valid = query_rows(first_row, kv_head, first, count, new, repeats, BLOCK_M)
    PAD: tl.constexpr = triton.next_power_of_2(D)
    component = tl.arange(0, PAD)
    inside = valid[:, None] & (component < D)[None, :]
    query_row = (row * new_tokens + first + token).to(tl.int64) * heads + head
    query_rows_ptr = query_ptr + query_row[:, None] * D
    query = tl.load(query_rows_ptr + component[None, :], mask=inside, other=0.0).to(tl.float32)
    if HAS_DECODER and pairs > 0:
        other = partner(component, pairs, INTERLEAVED)
        turned = tl.load(query_rows_ptr + other[None, :], mask=inside, other=0.0)
        cosine, sine = rotation_back(
            frequency_ptr, segment * segment_length, component, pairs, INTERLEAVED
        )
        query = query * cosine[None, :] + turned.to(tl.float32) * sine[None, :]
    out_row = ((row * count + token).to(tl.int64) * heads + head) * segments + segment
    offset = tl.zeros([BLOCK_M], tl.float32)
    if HAS_DECODER:
        components = c16 + c8 + c4 + c2
        table_ptr = decoder_ptr + kv_head.to(tl.int64) * components * D
        for start in range(0, components, BLOCK_R):
            r = start + tl.arange(0, BLOCK_R)
            table = tl.load(
                table_ptr + r[:, None] * D + component[None, :],
                mask=(r < components)[:, None] & (component < D)[None, :],
                other=0.0,
            )
            # Three products of tf32 are as good as fp32: only the result is rounded to fp16.
            a = tl.dot(query, tl.trans(table.to(tl.float32)), input_precision="tf32x3")
            a = clamp_half(a * scale)
            offset += tl.sum(a.to(tl.float32) * level_middle(r, c16, c8, c4)[None, :], 1)
            out = projected_ptr + out_row[:, None] * stride + r[None, :]
            tl.store(out, a, mask=valid[:, None] & (r < components)[None, :])
    else:
        a = clamp_half(query * scale)
        offset += tl.sum(a.to(tl.float32) * level_middle(component, c16, c8, c4)[None, :], 1)
        out = projected_ptr + out_row[:, None] * stride + component[None, :]
        tl.store(out, a, mask=inside)
    tl.store(offset_ptr + out_row, offset, mask=valid)
