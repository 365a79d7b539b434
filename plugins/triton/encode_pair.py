"""Encodes what the direction of a pair lacks: docs/operator.md, "Deltas of a pair"."""

from __future__ import annotations

import triton
import triton.language as tl

from minicache.plugins.triton.encode import (
    COLLINEAR_SINE,
    length_of,
    store_code,
    store_magnitude,
)
from minicache.plugins.triton.encoded import encoded_span
from minicache.plugins.triton.slots import slot_of

SMALLEST_COSINE = tl.constexpr(2.0**-6)
SHORTEST = tl.constexpr(2.0**-16)  # a shorter delta is rounding


@triton.jit
def encode_pair(
    gathered_ptr, aligned_ptr, delta_ptr, ratio_ptr, magnitude_ptr, past_ptr, total_ptr,
    evicted_ptr, new_tokens, kv_heads, capacity, sinks, window, segments, segment_length,
    magnitude_count, bytes,  # noqa: A002
    D: tl.constexpr, BITS: tl.constexpr, CODE_BITS: tl.constexpr, MAGNITUDE: tl.constexpr,
    ALIGNED: tl.constexpr, EVICTS: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Grid: (ceil(S / BLOCK_T), Hk, B); after ``encode``, whose magnitudes get the cosine.

    In fp64, as there.

    Tensors:
        gathered_ptr: fp32[B, S, 2, Hk, D], heads matched.
        aligned_ptr: the same vectors in the code space; ALIGNED.
        delta_ptr: u8[B, Hk, C, bytes].
        ratio_ptr: fp16[B, Hk, C].
        magnitude_ptr: fp16[B, Hk, C, magnitude_count].
        past_ptr: i32[B].
        total_ptr: i32[B].
        evicted_ptr: i32[B, segments + 1]; it, segment_length and EVICTS: see ``slots``.

    Constants:
        BITS: of deltas: 16, 4 or 2.
        CODE_BITS: of directions.
        MAGNITUDE: as in ``encode``.
    """
    head = tl.program_id(1)
    row = tl.program_id(2)
    _, _, _, first, end = encoded_span(past_ptr, total_ptr, row, sinks, window)
    index = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    if first + tl.program_id(0) * BLOCK_T >= end:
        return
    position = first + index
    slot = slot_of(position, evicted_ptr, row, segments, segment_length, sinks, EVICTS)
    inside = (position < end) & (slot < capacity) & (index < new_tokens)
    # Columns hold the planes of a delta's code, as those of a direction in ``encode``.
    planes: tl.constexpr = 8 // BITS if BITS < 8 else 1
    width: tl.constexpr = D // planes
    pad: tl.constexpr = triton.next_power_of_2(width)
    column = tl.arange(0, planes * pad)
    component = column // pad * width + column % pad
    valid = inside[:, None] & (column % pad < width)[None, :]
    token = row.to(tl.int64) * new_tokens + index
    lower = ((token * 2 * kv_heads + head) * D)[:, None] + component[None, :]
    upper = lower + kv_heads * D
    source_ptr = aligned_ptr if ALIGNED else gathered_ptr
    a = tl.load(source_ptr + lower, mask=valid, other=0.0).to(tl.float64)
    b = tl.load(source_ptr + upper, mask=valid, other=0.0).to(tl.float64)
    length_a = tl.sqrt(tl.sum(a * a, 1))
    length_b = tl.sqrt(tl.sum(b * b, 1))
    a = a * (1.0 / tl.where(length_a > 0, length_a, 1.0))[:, None]
    b = b * (1.0 / tl.where(length_b > 0, length_b, 1.0))[:, None]
    both = (length_a > 0) & (length_b > 0)
    total = a + b
    together = tl.sqrt(tl.sum(total * total, 1))
    delta = (a - b) * 0.5
    length = tl.sqrt(tl.sum(delta * delta, 1))
    cosine = together * 0.5
    cosine = tl.where(cosine < SMALLEST_COSINE, SMALLEST_COSINE, cosine)
    cosine = tl.where(both, cosine, 1.0)

    # The direction, for its step. Nearly opposite layers have that of the first.
    apart = 2.0 * length
    squares = apart * apart + together * together
    sine = 2.0 * apart * together / tl.where(squares > 0, squares, 1.0)
    opposed = both & (sine < COLLINEAR_SINE) & (together <= apart)
    direction = tl.where(opposed[:, None], a, total)
    direction = direction / tl.where(both & ~opposed & (together > 0), together, 1.0)[:, None]
    step = tl.full([BLOCK_T], 1.0, tl.float64)
    if CODE_BITS < 16:
        step = tl.max(tl.abs(direction), 1) / (2 ** (CODE_BITS - 1) - 0.5)

    kept = both & (length >= SHORTEST)
    scale = tl.where(kept, 1.0 / tl.where(kept, length, 1.0), 0.0)
    own = store_code(delta_ptr, delta * scale[:, None], inside, row, head, slot, kv_heads,
                     capacity, bytes, D, BITS, BLOCK_T)  # fmt: skip
    stored = (row.to(tl.int64) * kv_heads + head) * capacity + slot
    ratio = tl.where(kept, length, 0.0) / cosine * own / tl.where(step > 0, step, 1.0)
    store_magnitude(ratio_ptr + stored, ratio, inside)

    if ALIGNED:
        length_a = length_of(gathered_ptr + lower, valid)
        length_b = length_of(gathered_ptr + upper, valid)
    factor = cosine * step
    magnitudes_ptr = magnitude_ptr + stored * magnitude_count
    if MAGNITUDE == 0:
        store_magnitude(magnitudes_ptr, length_a * factor, inside)
        store_magnitude(magnitudes_ptr + 1, length_b * factor, inside)
    elif MAGNITUDE == 1:
        store_magnitude(magnitudes_ptr, length_b * factor, inside)
    else:
        store_magnitude(magnitudes_ptr, 0.5 * (length_a + length_b) * factor, inside)
