"""Attention of new tokens to the coded tokens of a pair with deltas (docs/operator.md).

As ``attend_codes``, which it repeats: kept apart, so that codes without deltas pay nothing. A part
of the codes makes two parts of the output, of directions and of deltas; weights count once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from minicache.plugins.triton.code_dots import (
    add_scores,
    add_values,
    middle_sum,
    no_values,
    query_tiles,
    store_values,
)
from minicache.plugins.triton.slots import end_slot, segment_of_slot
from minicache.plugins.triton.softmax import LOG2_E, add_tile, capped
from minicache.plugins.triton.span import code_end, row_lengths


@triton.jit
def attend_pair(
    projected_ptr, offset_ptr, key_code_ptr, value_code_ptr, key_magnitude_ptr, value_magnitude_ptr,
    key_delta_ptr, value_delta_ptr, key_ratio_ptr, value_ratio_ptr, past_ptr, total_ptr,
    evicted_ptr, job_ptr, bias_ptr, skipped_ptr, maximum_ptr, sum_ptr, coded_ptr, new_tokens, first,
    count, heads, kv_heads, heads_per_job, jobs, code_heads, capacity, splits, parts, segments,
    segment_length, sinks, window, local_window, magnitude_count, magnitude_slot, skipped_stride,
    bias_batch_stride, bias_capacity, k_n16, k_n8, k_n4, k_n2, k_b8, k_b4, k_b2, k_bytes, v_n16,
    v_n8, v_n4, v_n2, v_b8, v_b4, v_b2, v_bytes, d_n16, d_n8, d_n4, d_n2, d_b8, d_b4, d_b2, d_bytes,
    k_stride, v_stride, softcap, sign,
    K16: tl.constexpr, K8: tl.constexpr, K4: tl.constexpr, K2: tl.constexpr, V16: tl.constexpr,
    V8: tl.constexpr, V4: tl.constexpr, V2: tl.constexpr, W16: tl.constexpr, W8: tl.constexpr,
    W4: tl.constexpr, W2: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    MARKS: tl.constexpr, EVICTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid (cdiv(count * heads_per_job * repeats, BLOCK_M), splits / 2, B * jobs).

    Arguments are those of ``attend_codes`` and these:
        key_delta_ptr, value_delta_ptr: uint8 ``[B, Hc, C, d_bytes]``.
        key_ratio_ptr, value_ratio_ptr: fp16 ``[B, Hc, C]``: of the deltas to the directions.
        d_n16 .. d_bytes: of deltas, as k_n16 and so on; they have one width.
        sign: 1 for the first layer of the pair, -1 for the second.
        splits: twice the parts that codes are cut into: of directions, then of deltas.
        W16 .. W2: as K16 and so on, of deltas.
    """
    split = tl.program_id(1)
    row = tl.program_id(2) // jobs
    job = tl.program_id(2) % jobs
    past, new = row_lengths(past_ptr, total_ptr, row, new_tokens)
    repeats = heads // kv_heads
    per_token = heads_per_job * repeats
    first_row = tl.program_id(0) * BLOCK_M
    if first + first_row // per_token >= new:
        return
    query_row = first_row + tl.arange(0, BLOCK_M)
    token = query_row // per_token
    valid = (token < count) & (first + token < new)
    place = query_row % per_token
    kv_head = tl.load(job_ptr + job * heads_per_job + place // repeats)
    head = kv_head * repeats + place % repeats
    out_row = (row * count + token).to(tl.int64) * heads + head

    # The tiles of this split, of those that hold codes: slots [sinks, end).
    end = end_slot(code_end(past, sinks, window), evicted_ptr, row, segments, EVICTS)
    end = tl.minimum(end, capacity)
    tile_begin = sinks // BLOCK_N
    tiles = tl.maximum(tl.cdiv(end, BLOCK_N) - tile_begin, 0)
    share = tl.cdiv(tiles, splits // 2)
    begin = tile_begin + split * share
    stop = tl.minimum(begin + share, tile_begin + tiles)
    # Exclusive lower bound of what a row sees; -1 sees all.
    bound = tl.where(local_window > 0, past + first + token - local_window, -1)
    if local_window > 0:
        oldest = past + first + first_row // per_token - local_window + 1
        begin = tl.maximum(begin, oldest // BLOCK_N)

    key_base = (row * code_heads + tl.load(job_ptr + kv_heads + job)).to(tl.int64) * capacity
    value_head = tl.load(job_ptr + kv_heads + jobs + job)
    value_base = (row * code_heads + value_head).to(tl.int64) * capacity
    if HAS_BIAS:
        bias_row = (head * new_tokens + first + token).to(tl.int64) * bias_capacity
        bias_row_ptr = bias_ptr + row * bias_batch_stride + bias_row
    if MARKS == 2:
        skipped_row_ptr = skipped_ptr + row * skipped_stride
        skipped = tl.minimum(tl.load(skipped_row_ptr), skipped_stride - 1)

    k_sizes = (k_n16, k_n8, k_n4, k_n2)
    k_starts = (k_b8, k_b4, k_b2)
    v_sizes = (v_n16, v_n8, v_n4, v_n2)
    v_starts = (v_b8, v_b4, v_b2)
    maximum = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    weighed = tl.zeros([BLOCK_M], tl.float32)  # sum of weight * magnitude as the dots see them
    delta_weighed = tl.zeros([BLOCK_M], tl.float32)  # likewise of the deltas
    sums = no_values(BLOCK_M, V16, V8, V4, V2)
    delta_sums = no_values(BLOCK_M, W16, W8, W4, W2)
    d_sizes = (d_n16, d_n8, d_n4, d_n2)
    d_starts = (d_b8, d_b4, d_b2)
    # A segment begins with a tile, unless tokens of it or before it are evicted: then ``begin`` and
    # ``stop`` count slots from here on, not tiles, and its first tile begins where it does.
    UNIT: tl.constexpr = 1 if EVICTS else BLOCK_N
    if EVICTS:
        begin *= BLOCK_N
        stop = tl.minimum(stop * BLOCK_N, end)
    while begin < stop:
        segment, after = segment_of_slot(
            begin, evicted_ptr, row, segments, segment_length // UNIT, EVICTS
        )
        segment_stop = tl.minimum(stop, after)
        a_row = out_row * segments + segment
        offset = tl.load(offset_ptr + a_row, mask=valid, other=0.0)
        a_ptr = projected_ptr + a_row * k_stride
        query = query_tiles(a_ptr, k_sizes, valid, BLOCK_M, K16, K8, K4, K2)
        # Components of a pair's codes have one width: the same query meets its deltas.
        delta_query = query_tiles(a_ptr, d_sizes, valid, BLOCK_M, W16, W8, W4, W2)
        delta_offset = middle_sum(delta_query, BLOCK_M, W4, W2)
        for tile in range(begin, segment_stop, BLOCK_N // UNIT):
            slot = tile * UNIT + tl.arange(0, BLOCK_N)
            inside = (slot >= sinks) & (slot < end)
            if EVICTS:
                inside = inside & (slot < segment_stop)
            key_code = key_base + slot
            value_code = value_base + slot
            key_at = key_magnitude_ptr + key_code * magnitude_count + magnitude_slot
            value_at = value_magnitude_ptr + value_code * magnitude_count + magnitude_slot
            key_bits = tl.load(key_at, mask=inside, other=0)
            value_bits = tl.load(value_at, mask=inside, other=0)
            read = inside
            if MARKS > 0:
                read = read & (key_bits >= 0)
            if MARKS == 2:
                for entry in range(skipped):
                    read = read & (slot != tl.load(skipped_row_ptr + 1 + entry))
            key_magnitude = (key_bits & 0x7FFF).to(tl.float16, bitcast=True).to(tl.float32)
            value_magnitude = (value_bits & 0x7FFF).to(tl.float16, bitcast=True).to(tl.float32)

            score = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
            score = add_scores(
                score, query, key_code_ptr, key_code, k_bytes, k_sizes, k_starts, inside,
                BLOCK_N, K16, K8, K4, K2,
            )  # fmt: skip
            score -= offset[:, None]
            key_ratio = tl.load(key_ratio_ptr + key_code, mask=inside, other=0.0).to(tl.float32)
            delta = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
            delta = add_scores(
                delta, delta_query, key_delta_ptr, key_code, d_bytes, d_sizes, d_starts, inside,
                BLOCK_N, W16, W8, W4, W2,
            )  # fmt: skip
            score += (delta - delta_offset[:, None]) * (sign * key_ratio)[None, :]
            if HAS_SOFTCAP or HAS_BIAS:
                score = score * key_magnitude[None, :]
                if HAS_SOFTCAP:
                    score = capped(score, softcap)
                if HAS_BIAS:
                    known = valid[:, None] & (read & (slot < bias_capacity))[None, :]
                    bias_at = bias_row_ptr[:, None] + slot[None, :]
                    score += tl.load(bias_at, mask=known, other=0.0).to(tl.float32)
                score = score * LOG2_E
            else:
                score = score * (key_magnitude * LOG2_E)[None, :]
            visible = read[None, :] & (slot[None, :] > bound[:, None])
            score = tl.where(visible, score, -float("inf"))
            weight, rescale, maximum, total = add_tile(score, maximum, total)
            weight = weight * value_magnitude[None, :]
            value_ratio = tl.load(value_ratio_ptr + value_code, mask=inside, other=0.0)
            delta_weight = (weight * (sign * value_ratio.to(tl.float32))[None, :]).to(tl.float16)
            delta_weighed = delta_weighed * rescale + tl.sum(delta_weight.to(tl.float32), 1)
            delta_sums = add_values(
                delta_sums, rescale, delta_weight, value_delta_ptr, value_code, d_bytes, d_sizes,
                d_starts, inside, BLOCK_M, BLOCK_N, W16, W8, W4, W2,
            )  # fmt: skip
            weight = weight.to(tl.float16)
            weighed = weighed * rescale + tl.sum(weight.to(tl.float32), 1)
            sums = add_values(
                sums, rescale, weight, value_code_ptr, value_code, v_bytes, v_sizes, v_starts,
                inside, BLOCK_M, BLOCK_N, V16, V8, V4, V2,
            )  # fmt: skip
        begin = segment_stop

    part = out_row * parts + split
    tl.store(maximum_ptr + part, maximum, mask=valid)
    tl.store(sum_ptr + part, total, mask=valid)
    tl.store(maximum_ptr + part + splits // 2, maximum, mask=valid)
    tl.store(sum_ptr + part + splits // 2, total * 0.0, mask=valid)
    out_ptr = coded_ptr + (out_row * splits + split) * v_stride
    seen = valid & (maximum > -float("inf"))
    store_values(out_ptr, sums, weighed, v_sizes, seen, BLOCK_M, V16, V8, V4, V2)
    delta_ptr = out_ptr + splits // 2 * v_stride
    store_values(delta_ptr, delta_sums, delta_weighed, d_sizes, seen, BLOCK_M, W16, W8, W4, W2)
