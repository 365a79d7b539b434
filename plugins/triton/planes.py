"""Codes in the ``row`` layout, read as words of 16 bits (docs/operator.md).

A width's segment is planes of components packed into the same bytes: of ``n`` bytes, byte j holds
components j, n + j, ... from the low bits up. A word of two bytes holds 16 / bits of them, here at
*places* 0, 1, ... from the low bits up. A tile of components has a column per place and word, all
words of place 0 first; each segment has its own number of words, PAD is a power of two above it.

Words and not bytes, as operands of tensor cores have 16 bits: words travel to where they are
multiplied as fp16 numbers do, and only there become levels.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Middle of the mid-rise grid per width: value = level - middle.
MIDDLE_8 = tl.constexpr(127.5)
MIDDLE_4 = tl.constexpr(7.5)
MIDDLE_2 = tl.constexpr(1.5)
FP16_MAX = tl.constexpr(65504.0)


@triton.jit
def load_words(row_ptr, start, words, rows, PAD: tl.constexpr):
    """Words ``[rows, PAD]`` of a segment, 0 beyond its ``words`` and where not ``rows``.

    ``row_ptr`` are ``[rows]`` pointers to the first word of each code.
    """
    at = tl.arange(0, PAD)
    inside = rows[:, None] & (at < words)[None, :]
    return tl.load(row_ptr[:, None] + (start + at)[None, :], mask=inside, other=0)


@triton.constexpr_function
def level_instructions(place: int, bits: int) -> str:
    """PTX that turns two words into their fp16 levels at a place, two numbers per instruction.

    Bits stay where they are in their byte, on top of 1024, and the fused multiply-add scales them
    down as it takes the base off: exact, as all that occurs has 11 bits.
    """
    bit = place * bits % 8
    mask = (2**bits - 1) << bit
    scale = (15 - bit) << 10  # fp16 2^-bit
    base = 0x8000 | (15 + 10 - bit) << 10  # fp16 -1024 * 2^-bit
    shift = "shr.b32 w, w, 8; " if place * bits >= 8 else ""
    return (
        "{ .reg .b32 w, s, b; mov.b32 w, $1; " + shift + f"mov.b32 s, {scale * 0x10001:#x}; "
        f"mov.b32 b, {base * 0x10001:#x}; lop3.b32 w, w, {mask * 0x10001:#x}, 0x64006400, 0xEA; "
        "fma.rn.f16x2 $0, w, s, b; }"
    )


@triton.jit
def level(word, PLACE: tl.constexpr, BITS: tl.constexpr):
    """The components at a place of words, as fp16: levels, unsigned; at 16 bits the values."""
    if BITS == 16:
        value = word.to(tl.float16, bitcast=True)
    else:
        # Left to itself the compiler takes pairs of words apart: three times the instructions.
        value = tl.inline_asm_elementwise(
            level_instructions(PLACE, BITS), "=r,r", [word], tl.float16, is_pure=True, pack=2
        )
    return value


@triton.jit
def all_levels(word, ROWS: tl.constexpr, PAD: tl.constexpr, BITS: tl.constexpr):
    """All components of words ``[ROWS, PAD]``, fp16 ``[ROWS, 16 / BITS * PAD]``."""
    if BITS == 16:
        tile = level(word, 0, 16)
    elif BITS == 8:
        pair = tl.join(level(word, 0, 8), level(word, 1, 8))
        tile = tl.reshape(tl.permute(pair, (0, 2, 1)), (ROWS, 2 * PAD))
    elif BITS == 4:
        low = tl.join(level(word, 0, 4), level(word, 1, 4))
        high = tl.join(level(word, 2, 4), level(word, 3, 4))
        tile = tl.reshape(tl.permute(tl.join(low, high), (0, 3, 2, 1)), (ROWS, 4 * PAD))
    else:
        low = tl.join(level(word, 0, 2), level(word, 1, 2))
        high = tl.join(level(word, 2, 2), level(word, 3, 2))
        lower = tl.join(low, high)
        low = tl.join(level(word, 4, 2), level(word, 5, 2))
        high = tl.join(level(word, 6, 2), level(word, 7, 2))
        tile = tl.join(lower, tl.join(low, high))
        tile = tl.reshape(tl.permute(tile, (0, 4, 3, 2, 1)), (ROWS, 8 * PAD))
    return tile


@triton.jit
def load_tile(
    row_ptr, size, first, rows, ROWS: tl.constexpr, PAD: tl.constexpr, BITS: tl.constexpr
):
    """Numbers of a segment's components, in their order in memory, as a tile ``[ROWS, columns]``.

    ``row_ptr`` are ``[ROWS]`` pointers to the first component's. The columns are those of PAD words
    from ``first`` on. Where not ``rows``, and in columns of no component, there are zeros.
    ``size``: bytes of the segment.
    """
    if BITS == 16:
        at = first + tl.arange(0, PAD)
        inside = rows[:, None] & (at < size // 2)[None, :]
        tile = tl.load(row_ptr[:, None] + at[None, :], mask=inside, other=0.0)
    else:
        PLANES: tl.constexpr = 8 // BITS
        plane = tl.arange(0, PLANES)[None, :, None] * size
        at = 2 * first + tl.arange(0, 2 * PAD)[None, None, :]
        inside = rows[:, None, None] & (at < size)
        numbers = tl.load(row_ptr[:, None, None] + (plane + at), mask=inside, other=0.0)
        numbers = tl.permute(tl.reshape(numbers, (ROWS, PLANES, PAD, 2)), (0, 3, 1, 2))
        tile = tl.reshape(numbers, (ROWS, 2 * PLANES * PAD))
    return tile


@triton.jit
def store_tile(
    row_ptr, tile, size, rows, ROWS: tl.constexpr, PAD: tl.constexpr, BITS: tl.constexpr
):
    """The reverse of ``load_tile``, from the first word on."""
    if BITS == 16:
        store_run(row_ptr, tile, size // 2, rows, PAD)
    else:
        PLANES: tl.constexpr = 8 // BITS
        plane = tl.arange(0, PLANES)[None, :, None] * size
        at = tl.arange(0, 2 * PAD)[None, None, :]
        inside = rows[:, None, None] & (at < size)
        numbers = tl.permute(tl.reshape(tile, (ROWS, 2, PLANES, PAD)), (0, 2, 3, 1))
        numbers = tl.reshape(numbers, (ROWS, PLANES, 2 * PAD))
        tl.store(row_ptr[:, None, None] + (plane + at), numbers, mask=inside)


@triton.jit
def store_run(row_ptr, numbers, count, rows, COLUMNS: tl.constexpr):
    """Writes the first ``count`` columns of ``[rows, COLUMNS]``."""
    at = tl.arange(0, COLUMNS)
    inside = rows[:, None] & (at < count)[None, :]
    tl.store(row_ptr[:, None] + at[None, :], numbers, mask=inside)


@triton.jit
def level_middle(component, c16, c8, c4):
    """Middle of the grid of each component, fp32; 0 for fp16 components."""
    coarse = tl.where(component < c16 + c8 + c4, MIDDLE_4, MIDDLE_2)
    fine = tl.where(component < c16, 0.0, MIDDLE_8)
    return tl.where(component < c16 + c8, fine, coarse)


@triton.jit
def clamp_half(x):
    """Fp32 as fp16, saturated at 65504; NaN stays."""
    x = tl.where(x > FP16_MAX, FP16_MAX, x)
    return tl.where(x < -FP16_MAX, -FP16_MAX, x).to(tl.float16)
