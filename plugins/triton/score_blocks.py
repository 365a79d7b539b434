"""Dots of queries with keys' levels where both are loaded as they are needed.

``code_dots.add_scores`` takes queries that stay in registers while tiles of codes go by. Where no
query meets a second tile, a block of columns at a time leaves registers for codes of any size.
"""

from __future__ import annotations

import triton
import triton.language as tl

from minicache.plugins.triton.code_dots import segment_levels
from minicache.plugins.triton.planes import load_tile

COLUMNS = tl.constexpr(256)  # of a block, at most


@triton.jit
def add_block_scores(
    score, a_ptr, rows, code_ptr, code, code_size, sizes, starts, inside, ROWS: tl.constexpr,
    CODES: tl.constexpr, PAD16: tl.constexpr, PAD8: tl.constexpr, PAD4: tl.constexpr,
    PAD2: tl.constexpr,
):  # fmt: skip
    """Adds the dots of mapped queries and levels to ``score`` fp32 ``[ROWS, CODES]``.

    ``a_ptr`` points to the ROWS queries, which are read where ``rows``; the rest is as of
    ``code_dots.add_scores``.
    """
    n16, n8, n4, n2 = sizes
    b8, b4, b2 = starts
    row_ptr = code_ptr.to(tl.pointer_type(tl.uint16), bitcast=True) + code * (code_size // 2)
    a8_ptr = a_ptr + n16 // 2
    a4_ptr = a8_ptr + n8
    a2_ptr = a4_ptr + 2 * n4
    score = add_width(score, a_ptr, rows, row_ptr, 0, n16, inside, ROWS, CODES, PAD16, 16)
    score = add_width(score, a8_ptr, rows, row_ptr, b8, n8, inside, ROWS, CODES, PAD8, 8)
    score = add_width(score, a4_ptr, rows, row_ptr, b4, n4, inside, ROWS, CODES, PAD4, 4)
    return add_width(score, a2_ptr, rows, row_ptr, b2, n2, inside, ROWS, CODES, PAD2, 2)


@triton.jit
def add_width(
    score, a_ptr, rows, row_ptr, start, size, inside, ROWS: tl.constexpr, CODES: tl.constexpr,
    PAD: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """Adds the dots with the components of one width, whose bytes begin at ``start``."""
    WORDS: tl.constexpr = COLUMNS * BITS // 16
    if PAD > WORDS:
        for first in range(0, size // 2, WORDS):
            query = load_tile(a_ptr, size, first, rows, ROWS, WORDS, BITS)
            word = start // 2 + first
            tile = segment_levels(row_ptr, word, size // 2 - first, inside, CODES, WORDS, BITS)
            score = tl.dot(query, tl.trans(tile), score)
    elif PAD > 0:
        query = load_tile(a_ptr, size, 0, rows, ROWS, PAD, BITS)
        tile = segment_levels(row_ptr, start // 2, size // 2, inside, CODES, PAD, BITS)
        score = tl.dot(query, tl.trans(tile), score)
    return score
