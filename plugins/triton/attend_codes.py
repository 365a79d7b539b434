"""Attention of new tokens to the coded tokens of a part of the cache."""

from __future__ import annotations

import triton
import triton.language as tl

from minicache.plugins.triton.code_dots import (
    add_scores,
    add_values,
    no_values,
    query_tiles,
    store_values,
)
from minicache.plugins.triton.slots import end_slot, segment_of_slot
from minicache.plugins.triton.softmax import LOG2_E, add_tile, capped
from minicache.plugins.triton.span import code_end, row_lengths


@triton.jit
def attend_codes(
    projected_ptr, offset_ptr, key_code_ptr, value_code_ptr, key_magnitude_ptr, value_magnitude_ptr,
    past_ptr, total_ptr, evicted_ptr, job_ptr, bias_ptr, skipped_ptr, maximum_ptr, sum_ptr,
    coded_ptr, new_tokens, first, count, heads, kv_heads, heads_per_job, jobs, code_heads, capacity,
    splits, parts, segments, segment_length, sinks, window, local_window, magnitude_count,
    magnitude_slot, skipped_stride, bias_batch_stride, bias_capacity, k_n16, k_n8, k_n4, k_n2, k_b8,
    k_b4, k_b2, k_bytes, v_n16, v_n8, v_n4, v_n2, v_b8, v_b4, v_b2, v_bytes, k_stride, v_stride,
    softcap,
    K16: tl.constexpr, K8: tl.constexpr, K4: tl.constexpr, K2: tl.constexpr, V16: tl.constexpr,
    V8: tl.constexpr, V4: tl.constexpr, V2: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr, MARKS: tl.constexpr, EVICTS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid (cdiv(count * heads_per_job * repeats, BLOCK_M), splits, B * jobs).

    A job is one key code head, one value code head and the kv heads that read both. Levels enter
    the dots as they are stored, unsigned; what the middle of the grid makes is taken off once: from
    scores by ``offset``, from sums of values by the sum of their weights.

    Tensors and numbers:
        projected_ptr, offset_ptr: of ``project``: fp16 ``[B, count, H, segments, k_stride]`` and
            fp32 ``[B, count, H, segments]``.
        key_code_ptr, value_code_ptr: uint8 ``[B, Hc, C, k_bytes]``, ``[B, Hc, C, v_bytes]``.
        key_magnitude_ptr, value_magnitude_ptr: the bits of fp16 ``[B, Hc, C, magnitude_count]``;
            this layer's is magnitude_slot.
        past_ptr, total_ptr: int32 ``[B]``; evicted_ptr, segments, EVICTS: see ``slots``.
        job_ptr: int32: kv heads ``[Hk]`` job after job, key code heads ``[jobs]``, value ones.
        bias_ptr: T ``[B or 1, H, S, bias_capacity]``, with HAS_BIAS; bias_batch_stride: elements
            between batch rows, 0 where they share it.
        skipped_ptr: int32 ``[B, skipped_stride]``, with MARKS 2: a number, and so many slots.
        maximum_ptr, sum_ptr: fp32 ``[B, count, H, parts]``, written: highest score times log2 e
            (-inf where the part holds nothing visible), and sum of the weights relative to it.
        coded_ptr: fp32 ``[B, count, H, splits, v_stride]``, written where something is visible: sum
            of weight * magnitude * value, by component.
        new_tokens: S; first, count: the new tokens of this launch.
        heads, kv_heads, code_heads, heads_per_job, jobs: H, Hk, Hc; of kv heads per job; of jobs.
        capacity: C; sinks, window, segment_length: N, W, L, a multiple of BLOCK_N.
        splits: parts that the codes are cut into, each a run of whole tiles; they come first among
            the ``parts``.
        local_window: sliding window; 0 off, as where tokens are evicted, which have no bias either:
            so slots are positions where those count.
        k_n16 .. k_n2: bytes that key components of each width take in a code, a whole number of
            words; k_b8 .. k_b2: first bytes of their segments; v_* are those of values.
        K16 .. K2: per width, the power of two >= 16 that holds its words of two bytes, or 0 where
            there are no such components; V16 .. V2 likewise.
        MARKS: tokens are left out 0: never; 1: by the sign bit of their magnitude; 2: by the list
            as well.
        BLOCK_M: rows (new token, query head of the job); BLOCK_N: coded tokens of a tile.
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
    share = tl.cdiv(tiles, splits)
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
    sums = no_values(BLOCK_M, V16, V8, V4, V2)
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
            weight = (weight * value_magnitude[None, :]).to(tl.float16)
            weighed = weighed * rescale + tl.sum(weight.to(tl.float32), 1)
            sums = add_values(
                sums, rescale, weight, value_code_ptr, value_code, v_bytes, v_sizes, v_starts,
                inside, BLOCK_M, BLOCK_N, V16, V8, V4, V2,
            )  # fmt: skip
        begin = segment_stop

    tl.store(maximum_ptr + out_row * parts + split, maximum, mask=valid)
    tl.store(sum_ptr + out_row * parts + split, total, mask=valid)
    out_ptr = coded_ptr + (out_row * splits + split) * v_stride
    seen = valid & (maximum > -float("inf"))
    store_values(out_ptr, sums, weighed, v_sizes, seen, BLOCK_M, V16, V8, V4, V2)
