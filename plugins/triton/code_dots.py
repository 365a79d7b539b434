"""Dots with codes: of queries with keys' levels, and of weights with values' levels.

Both take levels as they are stored, unsigned; callers account for the middle of the grid. Queries
are a tuple of a tile per width, 16, 8, 4 and 2 bits (``planes.py`` says what is in its columns),
with a placeholder of one element for a width that a code has not got.

``sizes`` are the bytes that each width takes in a code, ``starts`` the first bytes of 8, 4 and 2
bits; PADS are, per width, the power of two that holds its words, or 0 where there are none.
"""

from __future__ import annotations

import triton
import triton.language as tl

from minicache.plugins.triton.planes import (
    MIDDLE_2,
    MIDDLE_4,
    MIDDLE_8,
    all_levels,
    level,
    load_tile,
    load_words,
    store_run,
    store_tile,
)


@triton.jit
def query_tiles(
    a_ptr, sizes, rows, ROWS: tl.constexpr, PAD16: tl.constexpr, PAD8: tl.constexpr,
    PAD4: tl.constexpr, PAD2: tl.constexpr,
):  # fmt: skip
    """Mapped queries fp16 ``[ROWS, columns]`` per width; ``a_ptr`` points to each row."""
    n16, n8, n4, n2 = sizes
    a8_ptr = a_ptr + n16 // 2
    a4_ptr = a8_ptr + n8
    none = tl.zeros([1], tl.float16)
    return (
        load_tile(a_ptr, n16, 0, rows, ROWS, PAD16, 16) if PAD16 > 0 else none,
        load_tile(a8_ptr, n8, 0, rows, ROWS, PAD8, 8) if PAD8 > 0 else none,
        load_tile(a4_ptr, n4, 0, rows, ROWS, PAD4, 4) if PAD4 > 0 else none,
        load_tile(a4_ptr + 2 * n4, n2, 0, rows, ROWS, PAD2, 2) if PAD2 > 0 else none,
    )


@triton.jit
def add_scores(
    score, query, code_ptr, code, code_size, sizes, starts, inside, ROWS: tl.constexpr,
    PAD16: tl.constexpr, PAD8: tl.constexpr, PAD4: tl.constexpr, PAD2: tl.constexpr,
):  # fmt: skip
    """Adds the dots of queries and levels to ``score`` fp32 ``[M, N]``.

    ``query`` is of ``query_tiles``. Read are the N = ROWS codes ``code`` (int64) of ``code_size``
    bytes behind ``code_ptr`` (uint8), where ``inside`` (bool).
    """
    n16, n8, n4, n2 = sizes
    b8, b4, b2 = starts
    row_ptr = code_ptr.to(tl.pointer_type(tl.uint16), bitcast=True) + code * (code_size // 2)
    if PAD16 > 0:
        tile = segment_levels(row_ptr, 0, n16 // 2, inside, ROWS, PAD16, 16)
        score = tl.dot(query[0], tl.trans(tile), score)
    if PAD8 > 0:
        tile = segment_levels(row_ptr, b8 // 2, n8 // 2, inside, ROWS, PAD8, 8)
        score = tl.dot(query[1], tl.trans(tile), score)
    if PAD4 > 0:
        tile = segment_levels(row_ptr, b4 // 2, n4 // 2, inside, ROWS, PAD4, 4)
        score = tl.dot(query[2], tl.trans(tile), score)
    if PAD2 > 0:
        tile = segment_levels(row_ptr, b2 // 2, n2 // 2, inside, ROWS, PAD2, 2)
        score = tl.dot(query[3], tl.trans(tile), score)
    return score


@triton.jit
def middle_sum(query, ROWS: tl.constexpr, W4: tl.constexpr, W2: tl.constexpr):
    """What a score of unsigned levels of one width is too large by, fp32 ``[ROWS]``."""
    total = tl.zeros([ROWS], tl.float32)
    if W4 > 0:
        total += MIDDLE_4 * tl.sum(query[2].to(tl.float32), 1)
    if W2 > 0:
        total += MIDDLE_2 * tl.sum(query[3].to(tl.float32), 1)
    return total


@triton.jit
def segment_levels(
    row_ptr, start, words, rows, ROWS: tl.constexpr, PAD: tl.constexpr, BITS: tl.constexpr
):
    """A segment's components fp16 ``[ROWS, 16 / BITS * PAD]``."""
    return all_levels(load_words(row_ptr, start, words, rows, PAD), ROWS, PAD, BITS)


@triton.jit
def no_values(
    ROWS: tl.constexpr, PAD16: tl.constexpr, PAD8: tl.constexpr, PAD4: tl.constexpr,
    PAD2: tl.constexpr,
):  # fmt: skip
    """Sums of values before the first: zeros fp32, ``tiles_of`` each width."""
    sums = zero_tiles((), ROWS, PAD16, 16)
    sums = zero_tiles(sums, ROWS, PAD8, 8)
    sums = zero_tiles(sums, ROWS, PAD4, 4)
    return zero_tiles(sums, ROWS, PAD2, 2)


@triton.constexpr_function
def tiles_of(rows: int, pad: int, bits: int) -> int:
    """Tiles that the sums of a width are held in: one per place, or one of all.

    Apart they need no data moved. But products with no more columns than rows are cut among the
    warps by rows, so that each warp makes levels of all words instead of its share.
    """
    return 0 if pad == 0 else 1 if pad <= rows else 16 // bits


@triton.jit
def zero_tiles(tiles, ROWS: tl.constexpr, PAD: tl.constexpr, BITS: tl.constexpr):
    """Adds the zeros of one width to ``tiles``."""
    TILES: tl.constexpr = tiles_of(ROWS, PAD, BITS)
    for _ in tl.static_range(TILES):
        zeros = tl.zeros([ROWS, 16 // BITS // TILES * PAD], tl.float32)
        tiles = tiles + (zeros,)  # noqa: RUF005
    return tiles


@triton.jit
def add_values(
    sums, rescale, weight, code_ptr, code, code_size, sizes, starts, inside, ROWS: tl.constexpr,
    CODES: tl.constexpr, PAD16: tl.constexpr, PAD8: tl.constexpr, PAD4: tl.constexpr,
    PAD2: tl.constexpr,
):  # fmt: skip
    """Rescales sums of values and adds weights fp16 ``[M, N]`` times levels; see ``add_scores``.

    M = ROWS, N = CODES.
    """
    n16, n8, n4, n2 = sizes
    b8, b4, b2 = starts
    row_ptr = code_ptr.to(tl.pointer_type(tl.uint16), bitcast=True) + code * (code_size // 2)
    out = add_width((), sums, rescale, weight, row_ptr, 0, n16, inside, ROWS, CODES, PAD16, 16)
    out = add_width(out, sums, rescale, weight, row_ptr, b8, n8, inside, ROWS, CODES, PAD8, 8)
    out = add_width(out, sums, rescale, weight, row_ptr, b4, n4, inside, ROWS, CODES, PAD4, 4)
    return add_width(out, sums, rescale, weight, row_ptr, b2, n2, inside, ROWS, CODES, PAD2, 2)


@triton.jit
def add_width(
    out, sums, rescale, weight, row_ptr, start, size, inside, ROWS: tl.constexpr,
    CODES: tl.constexpr, PAD: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """Adds the new sums of one width to ``out``, which holds those of the widths before."""
    TILES: tl.constexpr = tiles_of(ROWS, PAD, BITS)
    if PAD > 0:
        word = load_words(row_ptr, start // 2, size // 2, inside, PAD)
        for place in tl.static_range(TILES):
            tile = level(word, place, BITS) if TILES > 1 else all_levels(word, CODES, PAD, BITS)
            added = tl.dot(weight, tile, sums[len(out)] * rescale[:, None])
            out = out + (added,)  # noqa: RUF005
    return out


@triton.jit
def store_values(
    out_ptr, sums, weighed, sizes, rows, ROWS: tl.constexpr, PAD16: tl.constexpr,
    PAD8: tl.constexpr, PAD4: tl.constexpr, PAD2: tl.constexpr,
):  # fmt: skip
    """Writes sums of true values, fp32; ``weighed`` ``[M]`` is the sum of the weights."""
    n16, n8, n4, n2 = sizes
    out8_ptr = out_ptr + n16 // 2
    FIRST8: tl.constexpr = tiles_of(ROWS, PAD16, 16)
    FIRST4: tl.constexpr = FIRST8 + tiles_of(ROWS, PAD8, 8)
    FIRST2: tl.constexpr = FIRST4 + tiles_of(ROWS, PAD4, 4)
    store_width(out_ptr, sums, 0, n16, weighed * 0.0, rows, ROWS, PAD16, 16)
    store_width(out8_ptr, sums, FIRST8, n8, weighed * MIDDLE_8, rows, ROWS, PAD8, 8)
    store_width(out8_ptr + n8, sums, FIRST4, n4, weighed * MIDDLE_4, rows, ROWS, PAD4, 4)
    store_width(out8_ptr + (n8 + 2 * n4), sums, FIRST2, n2, weighed * MIDDLE_2, rows, ROWS, PAD2, 2)


@triton.jit
def store_width(
    out_ptr, sums, FIRST: tl.constexpr, size, middle, rows, ROWS: tl.constexpr, PAD: tl.constexpr,
    BITS: tl.constexpr,
):  # fmt: skip
    """Writes the components of one width, less ``middle`` ``[M]``; its sums start at FIRST."""
    TILES: tl.constexpr = tiles_of(ROWS, PAD, BITS)
    if TILES > 0:
        if TILES == 1:
            store_tile(out_ptr, sums[FIRST] - middle[:, None], size, rows, ROWS, PAD, BITS)
        else:  # places of the same bits of the two bytes of a word: a run of components
            PLANES: tl.constexpr = 8 // BITS
            for plane in tl.static_range(PLANES):
                pair = tl.join(sums[FIRST + plane], sums[FIRST + PLANES + plane])
                run = tl.reshape(pair, (ROWS, 2 * PAD)) - middle[:, None]
                store_run(out_ptr + plane * size, run, size, rows, 2 * PAD)
