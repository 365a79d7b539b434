"""How much the observed queries of a call attend to coded tokens (docs/operator.md, "Eviction").

Scores are those of ``attend_codes`` and ``attend_pair`` once more; the sums of the softmax are
known by now, so that a program needs no others to weigh the tokens of its own.
"""

from __future__ import annotations

import triton
import triton.language as tl

from minicache.plugins.triton.code_dots import add_scores, middle_sum, query_tiles
from minicache.plugins.triton.score_blocks import add_block_scores
from minicache.plugins.triton.slots import first_slot, gone_below
from minicache.plugins.triton.softmax import LOG2_E, capped
from minicache.plugins.triton.span import code_end, observed_tokens, row_lengths


@triton.jit
def observe_codes(
    projected_ptr, offset_ptr, key_code_ptr, key_magnitude_ptr, key_delta_ptr, key_ratio_ptr,
    past_ptr, total_ptr, evicted_ptr, job_ptr, skipped_ptr, log_sum_ptr, mass_ptr, new_tokens,
    first, count, heads, kv_heads, heads_per_job, jobs, code_heads, capacity, segments,
    segment_length, sinks, window, magnitude_count, magnitude_slot, skipped_stride, observes, k_n16,
    k_n8, k_n4, k_n2, k_b8, k_b4, k_b2, k_bytes, d_n16, d_n8, d_n4, d_n2, d_b8, d_b4, d_b2, d_bytes,
    k_stride, softcap, sign, K16: tl.constexpr, K8: tl.constexpr, K4: tl.constexpr,
    K2: tl.constexpr, W16: tl.constexpr, W8: tl.constexpr, W4: tl.constexpr, W2: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr, MARKS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid (cdiv(min(L, C), BLOCK_N), segments, B).

    A program adds up what BLOCK_N tokens of one segment get from all queries of all heads, and is
    the only one that writes their entries: sums have one order. Arguments are those of
    ``attend_codes`` and ``attend_pair`` (deltas where W16 .. W2 are not all 0), and these:
        evicted_ptr: int32 ``[B, segments + 1]``: tokens that are evicted before each segment.
        log_sum_ptr: fp32 ``[B, count, H]``, of ``observe_sum``.
        mass_ptr: fp32 ``[B, C]``, added to where tokens are read from their code.
        observes: how many of the last valid tokens are observed; -1: all.
    """
    segment = tl.program_id(1)
    row = tl.program_id(2)
    past, new = row_lengths(past_ptr, total_ptr, row, new_tokens)
    begin, end = observed_tokens(first, count, new, observes)
    if begin >= end:
        return
    # The slots of this segment that hold codes [low, high).
    opening = segment * segment_length
    closing = tl.minimum(opening + segment_length, code_end(past, sinks, window))
    start = first_slot(segment, evicted_ptr, row, segments, segment_length, 1)
    low = tl.maximum(start + tl.maximum(sinks - opening, 0), 0)
    high = closing - gone_below(segment + 1, evicted_ptr, row, segments)
    high = tl.minimum(high, capacity)
    start += tl.program_id(0) * BLOCK_N
    if (start >= high) | (start + BLOCK_N <= low):
        return
    slot = start + tl.arange(0, BLOCK_N)
    inside = (slot >= low) & (slot < high)

    if MARKS == 2:
        skipped_row_ptr = skipped_ptr + row * skipped_stride
        skipped = tl.minimum(tl.load(skipped_row_ptr), skipped_stride - 1)
    repeats = heads // kv_heads
    per_token = heads_per_job * repeats
    k_sizes = (k_n16, k_n8, k_n4, k_n2)
    k_starts = (k_b8, k_b4, k_b2)
    d_sizes = (d_n16, d_n8, d_n4, d_n2)
    d_starts = (d_b8, d_b4, d_b2)
    blocks = tl.cdiv((end - begin) * per_token, BLOCK_M)
    gained = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    # One loop, in which nothing stays the same: in two, the levels of a job would stay in
    # registers, of which large codes leave too few.
    for step in range(jobs * blocks):
        job = step // blocks
        query_row = step % blocks * BLOCK_M + tl.arange(0, BLOCK_M)
        token = begin - first + query_row // per_token
        valid = first + token < end
        place = query_row % per_token
        kv_head = tl.load(job_ptr + job * heads_per_job + place // repeats)
        head = kv_head * repeats + place % repeats
        lead = (row * count + token).to(tl.int64) * heads + head
        a_row = lead * segments + segment
        a_ptr = projected_ptr + a_row * k_stride

        code_head = tl.load(job_ptr + kv_heads + job)
        code = (row * code_heads + code_head).to(tl.int64) * capacity + slot
        magnitude_at = key_magnitude_ptr + code * magnitude_count + magnitude_slot
        bits = tl.load(magnitude_at, mask=inside, other=0)
        read = inside
        if MARKS > 0:
            read = read & (bits >= 0)
        if MARKS == 2:
            for entry in range(skipped):
                read = read & (slot != tl.load(skipped_row_ptr + 1 + entry))
        magnitude = (bits & 0x7FFF).to(tl.float16, bitcast=True).to(tl.float32)
        score = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        score = add_block_scores(
            score, a_ptr, valid, key_code_ptr, code, k_bytes, k_sizes, k_starts, inside, BLOCK_M,
            BLOCK_N, K16, K8, K4, K2,
        )  # fmt: skip
        score -= tl.load(offset_ptr + a_row, mask=valid, other=0.0)[:, None]
        if W16 + W8 + W4 + W2 > 0:
            ratio = tl.load(key_ratio_ptr + code, mask=inside, other=0.0).to(tl.float32)
            delta_query = query_tiles(a_ptr, d_sizes, valid, BLOCK_M, W16, W8, W4, W2)
            delta = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
            delta = add_scores(
                delta, delta_query, key_delta_ptr, code, d_bytes, d_sizes, d_starts, inside,
                BLOCK_N, W16, W8, W4, W2,
            )  # fmt: skip
            middle = middle_sum(delta_query, BLOCK_M, W4, W2)
            score += (delta - middle[:, None]) * (sign * ratio)[None, :]
        if HAS_SOFTCAP:
            score = capped(score * magnitude[None, :], softcap) * LOG2_E
        else:
            score = score * (magnitude * LOG2_E)[None, :]
        log_sum = tl.load(log_sum_ptr + lead, mask=valid, other=float("inf"))
        weight = tl.exp2(score - log_sum[:, None])
        gained += tl.where(valid[:, None] & read[None, :], weight, 0.0)
    mass_at = mass_ptr + row.to(tl.int64) * capacity + slot
    mass = tl.load(mass_at, mask=inside, other=0.0)
    tl.store(mass_at, mass + tl.sum(gained, 0) / heads, mask=inside)
