"""Levels and length of the components of joint vectors, packed into code rows (``subspace``)."""

from __future__ import annotations

import triton
import triton.language as tl

from minicache.plugins.triton.encoded import encoded_span
from minicache.plugins.triton.slots import slot_of


@triton.jit
def quantise_joint(
    joint_ptr, step_ptr, code_ptr, magnitude_ptr, past_ptr, total_ptr, evicted_ptr, new_tokens,
    code_heads, capacity, sinks, window, segments, segment_length, c8, c4, c2, b4, b2,
    bytes, stride,  # noqa: A002
    P8: tl.constexpr, P4: tl.constexpr, P2: tl.constexpr, EVICTS: tl.constexpr,
):  # fmt: skip
    """Grid: (S, Hc, B).

    Tensors:
        joint_ptr: fp32[B, S, Hc, stride].
        step_ptr: fp32[Hc, R].
        code_ptr: u8[B, Hc, C, bytes].
        magnitude_ptr: fp16[B, Hc, C, 1].
        past_ptr: i32[B].
        total_ptr: i32[B].
        evicted_ptr: i32[B, segments + 1]; it, segment_length and EVICTS: see ``slots``.

    Constants:
        P8: at least the components of 8 bits, a power of two; 0: none. P4, P2 likewise, of planes.
    """
    index = tl.program_id(0)
    code_head = tl.program_id(1)
    row = tl.program_id(2)
    _, _, _, first, end = encoded_span(past_ptr, total_ptr, row, sinks, window)
    position = first + index
    slot = slot_of(position, evicted_ptr, row, segments, segment_length, sinks, EVICTS)
    if (position >= end) | (slot >= capacity):
        return
    y_ptr = joint_ptr + ((row.to(tl.int64) * new_tokens + index) * code_heads + code_head) * stride
    step_ptr += code_head * (c8 + c4 + c2)
    square = (index * 0).to(tl.float64)
    if P8 > 0:
        square += square_of(y_ptr, c8, 1, P8)
    if P4 > 0:
        square += square_of(y_ptr + c8, c4, 2, P4)
    if P2 > 0:
        square += square_of(y_ptr + c8 + c4, c2, 4, P2)
    # fp64 holds every sum of squares of fp32: it is finite where all components are.
    length = tl.where(square < float("inf"), tl.sqrt(square), 0.0)
    token = (row.to(tl.int64) * code_heads + code_head) * capacity + slot
    out_ptr = code_ptr + token * bytes
    if P8 > 0:
        store_levels(out_ptr, y_ptr, step_ptr, length, c8, 8, P8)
    if P4 > 0:
        store_levels(out_ptr + b4, y_ptr + c8, step_ptr + c8, length, c4, 4, P4)
    if P2 > 0:
        store_levels(out_ptr + b2, y_ptr + c8 + c4, step_ptr + c8 + c4, length, c2, 2, P2)
    magnitude = tl.minimum(length, 65504.0).to(tl.float32)
    tl.store(magnitude_ptr + token, magnitude.to(tl.float16))


@triton.jit
def square_of(y_ptr, count, PLANES: tl.constexpr, PAD: tl.constexpr):
    """Sum of the squares of ``count`` components, in fp64."""
    at = tl.arange(0, PLANES * PAD)
    y = tl.load(y_ptr + at, mask=at < count, other=0.0).to(tl.float64)
    return tl.sum(y * y, 0)


@triton.jit
def store_levels(
    out_ptr, y_ptr, step_ptr, length, count, BITS: tl.constexpr, PAD: tl.constexpr
):  # fmt: skip
    """Writes one segment of a code: levels in planes from the low bits up, zeros to 4 bytes."""
    planes: tl.constexpr = 8 // BITS
    width = count // planes
    plane = tl.arange(0, planes)[:, None]
    byte = tl.arange(0, PAD)
    at = plane * width + byte[None, :]
    inside = (byte < width)[None, :] & (plane < planes)
    y = tl.load(y_ptr + at, mask=inside, other=0.0).to(tl.float64)
    step = tl.load(step_ptr + at, mask=inside, other=1.0).to(tl.float64)
    half: tl.constexpr = 2 ** (BITS - 1)
    last: tl.constexpr = 2**BITS - 1
    known = length > 0
    level = tl.floor(y / tl.where(known, length, 1.0) / step) + half
    level = tl.minimum(tl.maximum(tl.where(known, level, half), 0.0), last)
    level = tl.where(inside, level.to(tl.int32), 0)
    packed = tl.sum(level << (plane * BITS), 0)
    tl.store(out_ptr + byte, packed.to(tl.uint8), mask=byte < (width + 3) // 4 * 4)
