"""What the softmax of each observed query is divided by, once its parts are known."""

from __future__ import annotations

import triton
import triton.language as tl

from minicache.plugins.triton.parts import merge_sums
from minicache.plugins.triton.span import observed_tokens, row_lengths


@triton.jit
def observe_sum(
    maximum_ptr, sum_ptr, sink_ptr, past_ptr, total_ptr, log_sum_ptr, new_tokens, first, count,
    heads, parts, observes, HAS_SINK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (cdiv(count * heads, BLOCK), B). After the parts of attention, of which it reads sums.

    Tensors and numbers:
        maximum_ptr, sum_ptr: fp32 ``[B, count, H, parts]``, as ``attend_codes`` writes them.
        sink_ptr: T ``[H]``, with HAS_SINK: logits that join the sum.
        past_ptr, total_ptr: int32 ``[B]``.
        log_sum_ptr: fp32 ``[B, count, H]``, written for observed tokens: log2 of the sum over all
            parts of exp2(score); inf where nothing was visible, so that no weight counts.
        new_tokens: S; first, count: the new tokens of this launch.
        heads: H.
        observes: how many of the last valid tokens are observed; -1: all.
        BLOCK: rows (new token, query head).
    """
    row = tl.program_id(1)
    _, new = row_lengths(past_ptr, total_ptr, row, new_tokens)
    begin, end = observed_tokens(first, count, new, observes)
    first_row = tl.program_id(0) * BLOCK
    if (first + first_row // heads >= end) | (first + (first_row + BLOCK - 1) // heads < begin):
        return
    query_row = first_row + tl.arange(0, BLOCK)
    token = first + query_row // heads
    head = query_row % heads
    valid = (token >= begin) & (token < end)
    out_row = row.to(tl.int64) * count * heads + query_row
    reference, total = merge_sums(
        maximum_ptr, sum_ptr, sink_ptr, out_row, head, parts, valid, BLOCK, HAS_SINK
    )
    log_sum = tl.where(total > 0, reference + tl.log2(total), float("inf"))
    tl.store(log_sum_ptr + out_row, log_sum, mask=valid)
