"""Merges the vectors of a group's layers into one direction, quantised, and their magnitudes."""

from __future__ import annotations

import triton
import triton.language as tl

from minicache.plugins.triton.angle import angle_of, sine_of
from minicache.plugins.triton.encoded import encoded_span
from minicache.plugins.triton.slots import slot_of

COLLINEAR_SINE = tl.constexpr(1e-4)  # below it the two directions span no plane
LIMIT = tl.constexpr(65504.0)  # the largest fp16


@triton.jit
def encode(
    gathered_ptr, aligned_ptr, code_ptr, magnitude_ptr, cosine_ptr, past_ptr, total_ptr,
    evicted_ptr, batch, new_tokens, group_size, kv_heads, capacity, sinks, window, segments,
    segment_length, magnitude_count, bytes, slerp_t,  # noqa: A002
    D: tl.constexpr, BITS: tl.constexpr, MAGNITUDE: tl.constexpr, ALIGNED: tl.constexpr,
    EVICTS: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Grid: (ceil(S / BLOCK_T), Hk, B); one launch for keys, one for values.

    All in fp64: where two layers nearly oppose each other the interpolation magnifies rounding
    errors by up to 10^4, and equal cosines must stay equal for retention.

    Tensors:
        gathered_ptr: fp32[B, S, G, Hk, D], heads matched.
        aligned_ptr: the same vectors in the code space; ALIGNED.
        code_ptr: u8[B, Hk, C, bytes].
        magnitude_ptr: fp16[B, Hk, C, magnitude_count].
        cosine_ptr: fp64[2, B, S, Hk]: over neighbouring layers, sum and minimum of the cosines.
        past_ptr: i32[B].
        total_ptr: i32[B].
        evicted_ptr: i32[B, segments + 1]; it, segment_length and EVICTS: see ``slots``.

    Constants:
        BITS: 16, 8 or 4.
        MAGNITUDE: 0 each layer's own, 1 the last layer's, 2 blended with the weights of directions.
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
    # Columns hold the planes of a code one after the other, each padded to a power of two.
    planes: tl.constexpr = 2 if BITS == 4 else 1
    width: tl.constexpr = D // planes
    pad: tl.constexpr = triton.next_power_of_2(width)
    column = tl.arange(0, planes * pad)
    component = column // pad * width + column % pad
    valid = inside[:, None] & (column % pad < width)[None, :]
    token = row.to(tl.int64) * new_tokens + index
    start = (token * group_size * kv_heads + head) * D
    offset = start[:, None] + component[None, :]
    source_ptr = aligned_ptr if ALIGNED else gathered_ptr

    direction = tl.zeros([BLOCK_T, planes * pad], tl.float64)
    below = direction
    known = tl.zeros([BLOCK_T], tl.int1)  # whether the direction is one yet
    nonzero = known
    length = tl.zeros([BLOCK_T], tl.float64)
    blended = length
    cosine_sum = length
    cosine_minimum = length + float("inf")
    for g in range(group_size):
        at = offset + g * kv_heads * D
        vector = tl.load(source_ptr + at, mask=valid, other=0.0).to(tl.float64)
        norm = tl.sqrt(tl.sum(vector * vector, 1))
        length = norm
        if ALIGNED:
            length = length_of(gathered_ptr + at, valid)
        was_nonzero = nonzero
        nonzero = norm != 0
        vector = vector * (1.0 / tl.where(nonzero, norm, 1.0))[:, None]
        cosine = tl.sum(below * vector, 1)
        cosine = tl.where(cosine > 1, 1.0, tl.where(cosine < -1, -1.0, cosine))
        cosine = tl.where(was_nonzero & nonzero, cosine, 1.0)
        below = vector
        if g > 0:
            cosine_sum += cosine
            lower = (cosine < cosine_minimum) | (cosine != cosine)
            cosine_minimum = tl.where(lower, cosine, cosine_minimum)
        t = 2.0 * tl.cast(slerp_t, tl.float64) / (g + 1)
        blended = tl.where(g > 0, (1.0 - t) * blended + t * length, length)
        weight_a, weight_b = slerp_weights(direction, vector, t)
        weight_a = tl.where(known, tl.where(nonzero, weight_a, 1.0), 0.0)
        weight_b = tl.where(nonzero, tl.where(known, weight_b, 1.0), 0.0)
        direction = weight_a[:, None] * direction + weight_b[:, None] * vector
        known = known | nonzero

    step = store_code(code_ptr, direction, inside, row, head, slot, kv_heads, capacity, bytes,
                      D, BITS, BLOCK_T)  # fmt: skip
    stored = (row.to(tl.int64) * kv_heads + head) * capacity + slot
    if MAGNITUDE == 0:
        for g in range(group_size):
            length = length_of(gathered_ptr + offset + g * kv_heads * D, valid)
            store_magnitude(magnitude_ptr + stored * magnitude_count + g, length * step, inside)
    else:
        if MAGNITUDE == 2:
            length = blended
        store_magnitude(magnitude_ptr + stored * magnitude_count, length * step, inside)
    cosine_at = cosine_ptr + token * kv_heads + head
    tl.store(cosine_at, cosine_sum, mask=inside)
    part = tl.cast(batch, tl.int64) * new_tokens * kv_heads
    tl.store(cosine_at + part, cosine_minimum, mask=inside)


@triton.jit
def length_of(pointer, valid):
    """Lengths [tokens] of fp32 vectors, in fp64."""
    vector = tl.load(pointer, mask=valid, other=0.0).to(tl.float64)
    return tl.sqrt(tl.sum(vector * vector, 1))


@triton.jit
def store_magnitude(pointer, magnitude, inside):
    """Magnitudes as fp16, saturated."""
    saturated = tl.where(magnitude > LIMIT, LIMIT, magnitude)
    tl.store(pointer, saturated.to(tl.float32).to(tl.float16), mask=inside)


@triton.jit
def slerp_weights(a, b, t):
    """Weights of unit vectors ``a`` and ``b`` [tokens, D] in slerp(a, b; t)."""
    difference = tl.sum((a - b) * (a - b), 1)
    total = tl.sum((a + b) * (a + b), 1)
    apart = tl.sqrt(difference)
    together = tl.sqrt(total)
    angle = 2.0 * angle_of(apart, together)
    both = difference + total
    sine = 2.0 * apart * together / tl.where(both > 0, both, 1.0)
    arc = sine >= COLLINEAR_SINE
    divisor = tl.where(arc, sine, 1.0)
    # Nearly equal: (1-t) a + t b, whose length is 1 up to 2e-9. Nearly opposite: a.
    share = tl.where(together > apart, t, 0.0)
    weight_a = tl.where(arc, sine_of((1.0 - t) * angle) / divisor, 1.0 - share)
    weight_b = tl.where(arc, sine_of(t * angle) / divisor, share)
    return weight_a, weight_b


@triton.jit
def store_code(
    code_ptr, direction, inside, row, head, slot, kv_heads, capacity, bytes,  # noqa: A002
    D: tl.constexpr, BITS: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Quantises and packs directions [tokens, planes * pad]; returns the steps [tokens]."""
    planes: tl.constexpr = 8 // BITS if BITS < 8 else 1
    width: tl.constexpr = D // planes
    pad: tl.constexpr = triton.next_power_of_2(width)
    byte = tl.arange(0, pad)
    token = (row.to(tl.int64) * kv_heads + head) * capacity + slot
    if BITS == 16:
        step = tl.full([BLOCK_T], 1.0, tl.float64)
        half_ptr = code_ptr.to(tl.pointer_type(tl.float16), bitcast=True)
        at = (token * (bytes // 2))[:, None] + byte[None, :]
        mask = inside[:, None] & (byte < D)[None, :]
        tl.store(half_ptr + at, direction.to(tl.float32).to(tl.float16), mask=mask)
    else:
        half: tl.constexpr = 2 ** (BITS - 1)
        if BITS == 2:  # of deltas
            step = tl.sqrt(tl.sum(direction * direction, 1) / D)
        else:
            step = tl.max(tl.abs(direction), 1) / (half - 0.5)
        level = tl.floor(direction / tl.where(step > 0, step, 1.0)[:, None]) + half
        level = tl.minimum(tl.maximum(level, 0.0), 2 * half - 1).to(tl.int32)
        level = tl.reshape(level, [BLOCK_T, planes, pad])
        plane = tl.arange(0, planes)
        packed = tl.sum(level << (plane * BITS)[None, :, None], 1)
        packed = tl.where((byte < width)[None, :], packed, 0)
        mask = inside[:, None] & (byte < (width + 3) // 4 * 4)[None, :]
        at = (token * bytes)[:, None] + byte[None, :]
        tl.store(code_ptr + at, packed.to(tl.uint8), mask=mask)
    return step
