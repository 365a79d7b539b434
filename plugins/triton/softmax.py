"""Softmax in base 2 over tiles of scores, one after the other."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def capped(score, softcap):
    """The score as softcap * tanh(score / softcap); by exp2, as Triton has no tanh of its own."""
    return softcap - 2.0 * softcap / (tl.exp2(score * (2.0 * LOG2_E / softcap)) + 1.0)


@triton.jit
def add_tile(score, maximum, total):
    """Takes a tile into a running softmax.

    Args:
        score: fp32 ``[M, N]``, times log2 e; -inf where not visible.
        maximum: fp32 ``[M]``, of the tiles so far; -inf where nothing was visible.
        total: fp32 ``[M]``, sum of the weights so far relative to ``maximum``.

    Returns:
        weights ``[M, N]``, the factor ``[M]`` for what was summed before, new maximum and total.
    """
    higher = tl.maximum(maximum, tl.max(score, 1))
    # Nothing visible yet: -inf minus -inf would be NaN.
    reference = tl.where(higher == -float("inf"), 0.0, higher)
    weight = tl.exp2(score - reference[:, None])
    rescale = tl.exp2(maximum - reference)
    return weight, rescale, higher, total * rescale + tl.sum(weight, 1)
