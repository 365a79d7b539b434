"""The least similar tokens of a batch row: the order of ``budget`` (docs/operator.md)."""

from __future__ import annotations

import triton
import triton.language as tl

POSITION_BITS = tl.constexpr(28)
DIGIT_BITS = tl.constexpr(4)
HIGHEST_DIGIT = tl.constexpr(56)  # a key has 60 bits
EVERY = tl.constexpr(1 << 60)  # above all keys


@triton.jit
def order_key(similarity, position):
    """int64 >= 0: less similar first, NaN last; ties go to the smaller position (below 2^28)."""
    bits = similarity.to(tl.int32, bitcast=True)
    bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    bits = tl.where(similarity == 0, 0, bits)  # -0.0 equals 0.0
    bits = tl.where(similarity != similarity, 0x7FFFFFFF, bits)
    return ((bits.to(tl.int64) + 0x80000000) << POSITION_BITS) | position.to(tl.int64)


@triton.jit
def stored_key(position_ptr, similarity_ptr, slot, slots, begin, end):
    """Keys of slots of the side buffer that hold a token of [begin, end); of others EVERY."""
    position = tl.load(position_ptr + slot, mask=slot < slots, other=-1)
    similarity = tl.load(similarity_ptr + slot, mask=slot < slots, other=0.0)
    held = (position >= begin) & (position < end)
    return tl.where(held, order_key(similarity, position), EVERY)


@triton.jit
def token_key(similarity_ptr, index, first, count):
    """Keys of the tokens ``first + index`` that the call encodes; of others EVERY."""
    similarity = tl.load(similarity_ptr + index, mask=index < count, other=0.0)
    return tl.where(index < count, order_key(similarity, first + index), EVERY)


@triton.jit
def count_below(key, border):
    """How many keys [n] lie below each border [m]."""
    return tl.sum((key[:, None] < border[None, :]).to(tl.int32), 0)


@triton.jit
def least_similar(
    position_ptr, similarity_ptr, slots, begin, end, token_similarity_ptr, first, count, most,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The bound of keys below which the ``most`` least similar tokens lie; all, if they are fewer.

    A search by digits of 4 bits: each pass over the tokens counts those below 16 borders. It ends
    as soon as a border parts exactly ``most`` tokens from the others.

    Args:
        position_ptr: i32[slots] of the side buffer.
        similarity_ptr: fp32[slots].
        slots: P.
        begin: tokens of the side buffer count from this position on,
        end: up to this one.
        token_similarity_ptr: fp32[count] of the tokens [first, first + count), which count too.
        first: position of the first one.
        count: how many.
        most: how many are wanted.
        BLOCK: tokens at a time.

    Returns:
        int64.
    """
    everything = tl.full([1], EVERY, tl.int64)
    found = tl.zeros([1], tl.int32)
    for start in range(0, slots, BLOCK):
        slot = start + tl.arange(0, BLOCK)
        key = stored_key(position_ptr, similarity_ptr, slot, slots, begin, end)
        found += count_below(key, everything)
    candidates = tl.sum(found) + count
    digit = tl.arange(0, 16)
    bound = (candidates * 0).to(tl.int64)
    shift = HIGHEST_DIGIT + candidates * 0
    if candidates <= most:
        bound += EVERY
        shift = -DIGIT_BITS + candidates * 0
    while shift >= 0:
        border = bound + (digit.to(tl.int64) << shift.to(tl.int64))
        below = tl.zeros([16], tl.int32)
        for start in range(0, slots, BLOCK):
            slot = start + tl.arange(0, BLOCK)
            key = stored_key(position_ptr, similarity_ptr, slot, slots, begin, end)
            below += count_below(key, border)
        for start in range(0, count, BLOCK):
            key = token_key(token_similarity_ptr, start + tl.arange(0, BLOCK), first, count)
            below += count_below(key, border)
        # Counts ascend: the last digit that leaves no more than wanted.
        chosen = tl.sum((below <= most).to(tl.int32)) - 1
        reached = tl.sum(tl.where(digit == chosen, below, 0))
        bound += chosen.to(tl.int64) << shift.to(tl.int64)
        shift = tl.where(reached == most, -DIGIT_BITS, shift - DIGIT_BITS)
    return bound
