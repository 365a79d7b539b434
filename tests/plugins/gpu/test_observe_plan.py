"""What the plan launches to add up attention, and for which nodes."""

from __future__ import annotations

from typing import Any

import pytest

from minicache.plugins.triton.variant import parse_key
from tests.helpers import make_attributes
from tests.plugins.gpu.planned import kernels, plan_of
from tests.plugins.subspace_text import subspace_attributes

pytestmark = pytest.mark.usefixtures("ort_library")
SLERP = {"mode": "slerp", "window": 4, "ring_slots": 8}


@pytest.mark.parametrize(
    ("attributes", "rows"),
    [
        (make_attributes(**SLERP), 32),
        (make_attributes(**SLERP, slerp_t=0.5, delta_bits=4), 16),
        (subspace_attributes(segment_length=48), 16),  # of three widths
    ],
)
def test_observed_codes_take_as_many_rows_as_registers_hold(
    attributes: dict[str, Any], rows: int
) -> None:
    """Compiled with 32, codes of several widths and deltas spill."""
    plan = plan_of({**attributes, "evicts": 1, "observes": -1}, tokens=96, capacity=96)
    keys = [launch.key for launch in plan.launches if launch.key.startswith("observe_codes|")]
    assert {dict(parse_key(key).constants)["BLOCK_M"] for key in keys} == {rows}


def test_only_a_writer_that_observes_adds_up_attention() -> None:
    """Other nodes launch what they did before; chunk by chunk sums come before masses."""
    attributes = {**make_attributes(**SLERP), "evicts": 1}
    plain = kernels(plan_of(attributes, capacity=64))
    assert not {name for name in plain if name.startswith("observe")}
    observing = {**attributes, "observes": 4}
    launched = kernels(plan_of(observing, capacity=64, tokens=40, scratch_bytes=10_000))
    added = [name for name in launched if name.startswith("observe")]
    chunks = launched.count("finish")
    assert chunks > 1
    assert added == ["observe_sum", "observe_codes", "observe_exact"] * chunks
    assert launched[launched.index("observe_sum") - 1] == "finish"
    assert launched[-1] == "store"
    exact = kernels(plan_of({**make_attributes(), "evicts": 1, "observes": -1}, capacity=64))
    assert exact == ["attend_exact", "finish", "observe_sum", "observe_exact", "store"]
    reader = kernels(plan_of(observing, capacity=64, slot=0))
    assert "finish" in reader
    assert not {name for name in reader if name.startswith("observe")}
