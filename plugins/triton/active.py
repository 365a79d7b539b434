"""Which tokens of the side buffer a call reads, where the policy is ``budget``."""

from __future__ import annotations

import triton
import triton.language as tl

from minicache.plugins.triton.encoded import encoded_span
from minicache.plugins.triton.least import least_similar, stored_key
from minicache.plugins.triton.slots import slot_of


@triton.jit
def active(
    position_ptr, similarity_ptr, key_magnitude_ptr, past_ptr, total_ptr, evicted_ptr, active_ptr,
    skipped_ptr, kv_heads, retained, slack, capacity, magnitude_count, sinks, window, segments,
    segment_length,
    EVICTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The M = P - X least similar ones of the tokens that are stored. Grid: (B,).

    Tensors:
        position_ptr: i32[B, P].
        similarity_ptr: fp32[B, P].
        key_magnitude_ptr: i16[B, Hk, C, magnitude_count], the bits of the stored magnitudes.
        past_ptr: i32[B].
        total_ptr: i32[B].
        evicted_ptr: i32[B, segments + 1]; it, segment_length and EVICTS: see ``slots``.
        active_ptr: i32[B, P], written: 1 where the slot is read.
        skipped_ptr: i32[B, 1 + X], written: how many, and the slots of the codes of those that are
            read although no sign bit is there: they are to be skipped all the same.
    """
    row = tl.program_id(0)
    _, _, c0, _, _ = encoded_span(past_ptr, total_ptr, row, sinks, window)
    position_ptr += row.to(tl.int64) * retained
    similarity_ptr += row.to(tl.int64) * retained
    active_ptr += row.to(tl.int64) * retained
    skipped_ptr += row.to(tl.int64) * (1 + slack)
    key_magnitude_ptr += row.to(tl.int64) * kv_heads * capacity * magnitude_count  # of head 0
    most = tl.maximum(0, retained - slack)
    bound = least_similar(
        position_ptr, similarity_ptr, retained, sinks, c0, similarity_ptr, 0, 0 * retained, most,
        BLOCK,
    )  # fmt: skip
    unmarked = row * 0
    for start in range(0, retained, BLOCK):
        slot = start + tl.arange(0, BLOCK)
        key = stored_key(position_ptr, similarity_ptr, slot, retained, sinks, c0)
        reads = key < bound
        tl.store(active_ptr + slot, reads.to(tl.int32), mask=slot < retained)
        position = tl.load(position_ptr + slot, mask=slot < retained, other=-1)
        code = slot_of(position, evicted_ptr, row, segments, segment_length, sinks, EVICTS)
        at = code.to(tl.int64) * magnitude_count
        sign = tl.load(key_magnitude_ptr + at, mask=reads & (code < capacity), other=-1)
        lacks = reads & (sign >= 0)
        rank = unmarked + tl.cumsum(lacks.to(tl.int32), 0)
        tl.store(skipped_ptr + rank, code, mask=lacks & (rank <= slack))
        unmarked += tl.sum(lacks.to(tl.int32))
    tl.store(skipped_ptr, tl.minimum(unmarked, slack))
