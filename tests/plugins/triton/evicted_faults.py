"""Faults of kernels that know of evicted tokens; see ``seeded_faults``."""

from __future__ import annotations

from tests.plugins.triton.seeded_faults import Fault

EVICTED = (
    Fault(
        "slots lack what is evicted of the segment itself", "evicted_writes", "slots",
        "gone = gone_below(segment + 1,", "gone = gone_below(segment,",
    ),
    Fault(
        "segments begin where they would if nothing were evicted", "evicted_codes", "slots",
        "slot -= gone_below(segment,", "slot -= 0 * gone_below(segment,",
    ),
    Fault(
        "codes end where they would if nothing were evicted", "evicted_codes", "slots",
        "tl.maximum(end - gone_below(segments, evicted_ptr, row, segments), 0)", "end",
    ),
    Fault(
        "a slot is of the segment before", "evicted_codes", "slots",
        "return segment, stop", "return tl.maximum(segment - 1, 0), stop",
    ),
    Fault(
        "the last tile of a segment reads on", "evicted_codes", "attend_codes",
        "inside & (slot < segment_stop)", "inside",
    ),
    Fault(
        "the last tile of a segment of deltas reads on", "evicted_pair", "attend_pair",
        "inside & (slot < segment_stop)", "inside",
    ),
    Fault(
        "segments of which little is left have no query", "evicted_codes", "project",
        "coded = begin < end", "coded = begin + 16 < end",
    ),
    Fault(
        "all exact tokens are read", "evicted_exact", "attend_exact",
        "tl.minimum(end_slot(past, evicted_ptr, row, 1, EVICTS), slots)", "tl.minimum(past, slots)",
    ),
    Fault(
        "exact tokens lie in the slots of their positions", "evicted_exact", "store",
        "slot = slot_of(position, evicted_ptr, row, 1, NO_SEGMENTS, 0, EVICTS)", "slot = position",
    ),
    Fault(
        "directions lie in the slots of their positions", "evicted_writes", "encode",
        "slot = slot_of(position, evicted_ptr, row, segments, segment_length, sinks, EVICTS)",
        "slot = position",
    ),
    Fault(
        "deltas lie in the slots of their positions", "evicted_pair", "encode_pair",
        "slot = slot_of(position, evicted_ptr, row, segments, segment_length, sinks, EVICTS)",
        "slot = position",
    ),
    Fault(
        "joint codes lie in the slots of their positions", "evicted_joint", "quantise_joint",
        "slot = slot_of(position, evicted_ptr, row, segments, segment_length, sinks, EVICTS)",
        "slot = position",
    ),
    Fault(
        "marks lie in the slots of positions", "evicted_writes", "mark",
        "slot = slot_of(position, evicted_ptr, row, segments, segment_length, sinks, EVICTS)",
        "slot = position",
    ),
    Fault(
        "marks are looked for in the slots of positions", "evicted_writes", "active",
        "code = slot_of(position, evicted_ptr, row, segments, segment_length, sinks, EVICTS)",
        "code = position",
    ),
)  # fmt: skip
