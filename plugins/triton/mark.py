"""Sign bits of the magnitudes of tokens whose code is to be skipped, or no longer."""

from __future__ import annotations

import triton
import triton.language as tl

from minicache.plugins.triton.slots import slot_of


@triton.jit
def mark(
    key_magnitude_ptr, value_magnitude_ptr, change_ptr, past_ptr, total_ptr, evicted_ptr,
    new_tokens, kv_heads, capacity, retained, magnitude_count, sinks, segments, segment_length,
    EVICTS: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """After ``retain``. Grid: (ceil((P + S) / BLOCK_T), Hk, 2*B), kinds innermost.

    Tensors:
        key_magnitude_ptr: i16[B, Hk, C, magnitude_count], the bits of the stored magnitudes.
        value_magnitude_ptr: likewise.
        change_ptr: i32[B, P + S]: 2 * position + (1: skip the code); -1: nothing.
        past_ptr: i32[B].
        total_ptr: i32[B].
        evicted_ptr: i32[B, segments + 1]; it, segment_length and EVICTS: see ``slots``.
    """
    kind = tl.program_id(2) % 2
    row = tl.program_id(2) // 2
    if tl.load(total_ptr + row) <= tl.load(past_ptr + row):
        return  # ``retain`` left the row alone
    entry = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    at = row.to(tl.int64) * (retained + new_tokens) + entry
    change = tl.load(change_ptr + at, mask=entry < retained + new_tokens, other=-1)
    position = change >> 1
    slot = slot_of(position, evicted_ptr, row, segments, segment_length, sinks, EVICTS)
    known = (change >= 0) & (slot < capacity)
    magnitude_ptr = key_magnitude_ptr
    if kind == 1:
        magnitude_ptr = value_magnitude_ptr
    token = (row.to(tl.int64) * kv_heads + tl.program_id(1)) * capacity + slot
    for i in range(magnitude_count):
        bits_ptr = magnitude_ptr + token * magnitude_count + i
        bits = tl.load(bits_ptr, mask=known, other=0)
        signed = (bits & 0x7FFF) | ((change & 1) << 15).to(tl.int16)
        tl.store(bits_ptr, signed.to(tl.int16), mask=known & (signed != bits))
