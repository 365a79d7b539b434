"""Faults in what observing kernels add up, likewise to be found; see ``seeded_faults``."""

from __future__ import annotations

from tests.plugins.triton.seeded_faults import Fault

OBSERVED = (
    Fault(
        "masses are means over kv heads", "observed", "observe_codes",
        "tl.sum(gained, 0) / heads", "tl.sum(gained, 0) / kv_heads",
    ),
    Fault(
        "one more query is observed", "observed", "span",
        "0, new - observes)", "0, new - observes - 1)",
    ),
    Fault(
        "every launch starts masses anew", "observed", "observe_exact",
        "begun = inside & (index < first)", "begun = inside & (index < 0)",
    ),
    Fault(
        "new tokens keep what their slots had", "observed", "observe_exact",
        "begun = inside & (index < first)", "begun = inside",
    ),
    Fault(
        "new tokens get mass of queries before them", "observed", "observe_exact",
        "(index[None, :] <= token[:, None])", "(index[None, :] < new_tokens)",
    ),
    Fault(
        "sums lack the sink", "observed", "parts",
        "total += tl.exp2(sink - reference)", "total += 0.0 * tl.exp2(sink - reference)",
    ),
    Fault(
        "masses of exact tokens lie where these do", "observed", "observe_exact",
        "add_mass(mass_row_ptr, entry, gained, inside, capacity)\n    elif tile",
        "add_mass(mass_row_ptr, at, gained, inside, capacity)\n    elif tile",
    ),
    Fault(
        "retained tokens get the mass of their codes as well", "observed", "observe_codes",
        "read = read & (bits >= 0)", "read = read & (bits >= -32768)",
    ),
    Fault(
        "scores of codes are those of the first layer", "observed", "observe_codes",
        "code * magnitude_count + magnitude_slot", "code * magnitude_count",
    ),
    Fault(
        "segments end where they would if nothing were evicted", "observed_evicting",
        "observe_codes", "gone_below(segment + 1, evicted_ptr", "gone_below(segment, evicted_ptr",
    ),
    Fault(
        "queries met by codes are of the next segment", "observed_evicting", "observe_codes",
        "a_row = lead * segments + segment", "a_row = lead * segments + (segment + 1) % segments",
    ),
    Fault(
        "masses of exact tokens lie at their positions", "observed_evicting", "observe_exact",
        "segment_length, sinks, 1)\n        else", "segment_length, 1 << 30, 1)\n        else",
    ),
)  # fmt: skip
