"""Which options of an export only some modes read."""

from __future__ import annotations

# Options that only the paper's merge reads.
PAPER_OPTIONS = (
    "start_layer",
    "group_size",
    "slerp_t",
    "magnitude",
    "retention",
    "retention_capacity",
    "retention_scope",
    "code_bits",
    "align",
    "delta_bits",
    "delta_rank",
)
# Options that only the subspace mode reads.
SUBSPACE_OPTIONS = (
    "ratio",
    "kv_bytes_per_token",
    "max_kl",
    "max_group_size",
    "code_heads",
    "plan",
    "plan_minutes",
)
# Of these, what a given plan decides already.
PLANNED_OPTIONS = (
    "ratio",
    "kv_bytes_per_token",
    "max_kl",
    "max_group_size",
    "code_heads",
    "plan_minutes",
    "window",
    "sinks",
    "rewind_slack",
)
# Options of what is calibrated: the subspace mode, and the paper's merge with ``align`` or
# ``delta_rank``.
CALIBRATION_OPTIONS = ("calibration", "calibration_tokens")
# Options of both modes that store codes.
CODED_OPTIONS = ("window", "sinks")
