"""Goals: what they bound, and which contradict themselves."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicache.exporter.options import ExportOptions
from minicache.exporter.planner.goal import Goal
from minicache.runtime.errors import PlanError

NAN, INFINITE = float("nan"), float("inf")


@given(ratio=st.floats(1.001, 256), plain=st.integers(1024, 10**7))
def test_a_ratio_is_a_bound_on_bytes(ratio: float, plain: int) -> None:
    """The most bytes with which the ratio is still reached."""
    budget = Goal(ratio=ratio).budget(plain)
    assert budget is not None
    assert plain / max(budget, 1) >= ratio * (1 - 1e-12) or budget == 0
    assert plain / (budget + 1) < ratio


def test_bytes_are_taken_as_they_are_and_a_loss_bounds_no_bytes() -> None:
    assert Goal(bytes_per_token=1234).budget(9999) == 1234
    assert Goal(max_kl=0.1).budget(9999) is None
    assert Goal().budget(9999) is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ratio": 4.0, "kv_bytes_per_token": 100}, "--ratio and --kv-bytes-per-token"),
        ({"ratio": 1.0}, "--ratio is 1;"),
        ({"ratio": NAN}, "--ratio is nan"),
        ({"ratio": 257.0}, "--ratio is 257"),
        ({"kv_bytes_per_token": 0}, "--kv-bytes-per-token is 0"),
        ({"max_kl": 0.0}, "--max-kl is 0"),
        ({"max_kl": NAN}, "--max-kl is nan"),
        ({"max_group_size": 0}, "--max-group-size is 0"),
        ({"max_group_size": 33}, "--max-group-size is 33"),
        ({"code_heads": "together"}, "--code-heads 'together'"),
        ({"plan_minutes": 0.0}, "--plan-minutes is 0"),
        ({"plan_minutes": NAN}, "--plan-minutes is nan"),
        ({"calibration_tokens": 0}, "--calibration-tokens is 0"),
        ({"plan": "p.json", "ratio": 4.0}, "--ratio has no effect with --plan"),
        ({"plan": "p.json", "kv_bytes_per_token": 9}, "--kv-bytes-per-token has no effect"),
        ({"plan": "p.json", "max_kl": 0.1}, "--max-kl has no effect with --plan"),
    ],
)
def test_options_out_of_range_or_in_contradiction_are_named(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(PlanError) as error:
        ExportOptions(**options).check()
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("mode", "options", "words"),
    [
        ("exact", {"ratio": 4.0}, "--ratio 4.0 has no effect with --mode exact"),
        ("paper", {"max_kl": 0.1}, "--max-kl 0.1 has no effect with --mode paper"),
        ("paper", {"code_heads": "any"}, "--code-heads any has no effect with --mode paper"),
        ("exact", {"plan": "p.json"}, "--plan p.json has no effect with --mode exact"),
        ("exact", {"calibration": "t"}, "--calibration t has no effect with --mode exact"),
        ("subspace", {"slerp_t": 0.5}, "--slerp-t 0.5 has no effect with --mode subspace"),
        ("subspace", {"retention": "none"}, "--retention none has no effect"),
        ("subspace", {"group_size": 3}, "--group-size 3 has no effect with --mode subspace"),
        ("exact", {"window": 8}, "--window 8 has no effect with --mode exact"),
        ("exact", {"sinks": 0}, "--sinks 0 has no effect with --mode exact"),
    ],
)
def test_options_of_another_mode_are_refused(
    mode: str, options: dict[str, Any], words: str
) -> None:
    """They would look as if they had worked."""
    with pytest.raises(PlanError) as error:
        ExportOptions(mode=mode, **options).check()
    assert words in str(error.value)


def test_the_defaults_are_a_goal_of_the_subspace_mode() -> None:
    ExportOptions().check()
    assert ExportOptions().mode == "subspace"
    assert ExportOptions().goal() == Goal()
    ExportOptions(max_kl=INFINITE, plan_minutes=INFINITE).check()
