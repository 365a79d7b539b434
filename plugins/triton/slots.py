"""Slots of the tokens that are left of a batch row: docs/operator.md, "Eviction".

They are those of codes, magnitudes, deltas and ``attention_mass``, and of exact tokens in mode
``exact``. Arguments that all functions share:

    evicted_ptr: int32 ``[B, segments + 1]``, with EVICTS: tokens evicted before each segment.
    row: batch row, no constant.
    segments: n; 1 where keys have no frame.
    segment_length: L; more than any position where keys have no frame.
    sinks: N; 0 in mode ``exact``.
    EVICTS: 0: nothing is evicted, slots are positions, and nothing is loaded.

No table makes ``slot_of`` negative, or a loop that does not end; slots beyond the capacity are for
the caller to mask.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gone_below(segment, evicted_ptr, row, segments):
    """Evicted tokens before segments 0..n; n asks for all of the row, E."""
    return tl.load(evicted_ptr + row.to(tl.int64) * (segments + 1) + segment)


@triton.jit
def slot_of(
    position, evicted_ptr, row, segments, segment_length, sinks, EVICTS: tl.constexpr
):  # fmt: skip
    """Slot of each position that is left, or new in this call; never before the sinks'."""
    slot = position
    if EVICTS:
        segment = tl.minimum(tl.maximum(position // segment_length, 0), segments - 1)
        gone = gone_below(segment + 1, evicted_ptr, row, segments)
        slot = tl.where(position < sinks, position, tl.maximum(position - gone, sinks))
    return slot


@triton.jit
def end_slot(end, evicted_ptr, row, segments, EVICTS: tl.constexpr):
    """First slot behind the tokens before position ``end``, which all evicted ones are."""
    slot = end
    if EVICTS:
        slot = tl.maximum(end - gone_below(segments, evicted_ptr, row, segments), 0)
    return slot


@triton.jit
def first_slot(
    segment, evicted_ptr, row, segments, segment_length, EVICTS: tl.constexpr
):  # fmt: skip
    """First slot of segments 0..n, a multiple of 16, or where it would be if nothing is left."""
    slot = segment * segment_length
    if EVICTS:
        slot -= gone_below(segment, evicted_ptr, row, segments)
    return slot


@triton.jit
def segment_of_slot(
    slot, evicted_ptr, row, segments, segment_length, EVICTS: tl.constexpr
):  # fmt: skip
    """Segment of the token in one slot, and the first slot of the next one (of the last: 2^31 - 1).

    The next one begins behind ``slot`` whatever the table holds.
    """
    if EVICTS:
        # First slots ascend: the last segment that begins no later than the slot, by halving.
        segment = slot * 0
        after = segment + segments
        stop = segment + 0x7FFFFFFF
        while after - segment > 1:
            middle = (segment + after) // 2
            start = first_slot(middle, evicted_ptr, row, segments, segment_length, EVICTS)
            later = start > slot
            after = tl.where(later, middle, after)
            stop = tl.where(later, start, stop)
            segment = tl.where(later, segment, middle)
    else:
        segment = slot // segment_length
        stop = (segment + 1) * segment_length
    return segment, stop
