"""Lengths of a batch row and the borders that follow from them (docs/operator.md)."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def row_lengths(past_ptr, total_ptr, row, new_tokens):
    """Tokens in the cache and valid new tokens of a batch row; the latter never beyond S."""
    past = tl.maximum(tl.load(past_ptr + row), 0)
    return past, tl.minimum(tl.load(total_ptr + row) - past, new_tokens)


@triton.jit
def code_end(length, sinks, window):
    """End c of the codes of a row of ``length`` tokens: c0 of the past, c1 of the total length."""
    return tl.minimum(tl.maximum(sinks, length - window), length)


@triton.jit
def observed_tokens(first, count, new, observes):
    """Observed new tokens [begin, end) of a launch.

    Args:
        first: first new token of the launch.
        count: new tokens of the launch.
        new: valid new tokens of the batch row.
        observes: how many of the last valid ones are observed; -1: all.
    """
    oldest = tl.where(observes < 0, 0, new - observes)
    return tl.maximum(first, oldest), tl.minimum(first + count, new)


@triton.jit
def query_rows(first_row, kv_head, first, count, new, repeats, BLOCK_M: tl.constexpr):
    """New tokens and query heads of a block of rows that read one kv head.

    Args:
        first_row: of the block; rows are tokens times query heads, tokens outermost.
        kv_head: the kv head.
        first: first new token of the launch.
        count: new tokens of the launch.
        new: valid new tokens of the batch row.
        repeats: query heads per kv head.
        BLOCK_M: rows.

    Returns:
        token within the launch, query head, and whether there is such a valid token, ``[BLOCK_M]``.
    """
    row = first_row + tl.arange(0, BLOCK_M)
    token = row // repeats
    head = kv_head * repeats + row % repeats
    return token, head, (token < count) & (first + token < new)
