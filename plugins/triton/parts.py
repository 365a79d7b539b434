"""The parts of a softmax, merged: their sums relative to one reference (``attend_codes``)."""

from __future__ import annotations

import triton
import triton.language as tl

from minicache.plugins.triton.softmax import LOG2_E


@triton.jit
def merge_sums(
    maximum_ptr, sum_ptr, sink_ptr, out_row, head, parts, valid, ROWS: tl.constexpr,
    HAS_SINK: tl.constexpr,
):  # fmt: skip
    """What the weights of all parts are relative to, and their sum, sink included: fp32 ``[ROWS]``.

    Args:
        maximum_ptr: fp32 ``[..., parts]``, highest score of each part times log2 e; -inf where it
            saw nothing.
        sum_ptr: likewise, sum of weights relative to it.
        sink_ptr: ``[H]``, with HAS_SINK: logits that join the sum.
        out_row: ``[ROWS]``, rows of the two.
        head: ``[ROWS]``, query head of each.
        parts: how many.
        valid: ``[ROWS]``, which rows there are.
        ROWS: a power of two.
        HAS_SINK: whether there are sinks.
    """
    maximum = tl.full([ROWS], -float("inf"), tl.float32)
    for part in range(parts):
        at = maximum_ptr + out_row * parts + part
        maximum = tl.maximum(maximum, tl.load(at, mask=valid, other=-float("inf")))
    if HAS_SINK:
        sink = tl.load(sink_ptr + head, mask=valid, other=0.0).to(tl.float32) * LOG2_E
        maximum = tl.maximum(maximum, sink)
    # Nothing visible: -inf minus -inf would be NaN.
    reference = tl.where(maximum == -float("inf"), 0.0, maximum)
    total = tl.zeros([ROWS], tl.float32)
    for part in range(parts):
        part_sum = tl.load(sum_ptr + out_row * parts + part, mask=valid, other=0.0)
        total += part_sum * part_weight(maximum_ptr, out_row * parts + part, reference, valid)
    if HAS_SINK:
        total += tl.exp2(sink - reference)
    return reference, total


@triton.jit
def part_weight(maximum_ptr, at, reference, valid):
    """What a part's sums count, ``[M]``: 0 where it saw nothing."""
    return tl.exp2(tl.load(maximum_ptr + at, mask=valid, other=-float("inf")) - reference)
