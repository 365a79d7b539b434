"""Plans: which layers may share a code, and what a user may ask for."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicache.exporter.options import ExportOptions
from minicache.exporter.paper_plan import default_start_layer
from minicache.exporter.plan import Group, Plan
from minicache.exporter.retention import Retention
from minicache.runtime.errors import PlanError


@dataclass(frozen=True)
class FakeLayer:
    local_window: int = 0
    heads: int = 3

    @property
    def kind(self) -> tuple[int | str, ...]:
        return self.heads, self.local_window


def groups_of(layers: list[FakeLayer], **options: object) -> list[tuple[int, ...]]:
    plan = ExportOptions(mode="paper", **options).make_plan(layers, 1024)  # type: ignore[arg-type]
    return [group.layers for group in plan.groups if group.mode != "exact"]


def test_the_paper_merges_pairs_from_half_depth() -> None:
    assert groups_of([FakeLayer()] * 8) == [(4, 5), (6, 7)]


def test_an_odd_half_starts_one_layer_lower_to_fill_pairs() -> None:
    """30 layers: 15 layers cannot be paired, so S is 14 and 8 pairs are merged."""
    merged = groups_of([FakeLayer()] * 30)
    assert merged[0] == (14, 15)
    assert len(merged) == 8


@given(layers=st.integers(2, 80), size=st.integers(2, 10))
def test_the_default_start_fills_whole_groups(layers: int, size: int) -> None:
    if size > layers:
        return
    start = default_start_layer(layers, size)
    assert 0 <= start <= layers - size
    assert (layers - start) % size == 0


def test_a_start_layer_of_the_users_own_leaves_the_rest_exact() -> None:
    assert groups_of([FakeLayer()] * 6, start_layer=1) == [(1, 2), (3, 4)]


def test_larger_groups_merge_running() -> None:
    assert groups_of([FakeLayer()] * 6, group_size=3, start_layer=0) == [(0, 1, 2), (3, 4, 5)]


def test_layers_of_different_kind_never_share_a_group() -> None:
    sliding = FakeLayer(local_window=512)
    layers = [FakeLayer(), FakeLayer(), sliding, FakeLayer(), FakeLayer(), sliding, FakeLayer()]
    assert groups_of(layers, start_layer=0) == [(0, 1), (3, 4)]


def windows_of(*windows: int) -> list[FakeLayer]:
    return [FakeLayer(local_window=window) for window in windows]


@pytest.mark.parametrize(
    ("layers", "merged"),
    [
        (windows_of(512, 0) * 4, [(5, 7)]),
        (windows_of(512, 512, 512, 512, 512, 0) * 3, [(11, 17)]),
        (windows_of(0, 512) * 6, [(4, 6), (8, 10)]),
        (windows_of(512, 0, 0, 512, 512, 512, 512, 512), [(1, 2)]),
    ],
)
def test_sliding_layers_between_are_passed_over(
    layers: list[FakeLayer], merged: list[tuple[int, ...]]
) -> None:
    """Half depth is counted in full layers: of Gemma 3's 5, 11, 17 the last two are merged."""
    assert groups_of(layers) == merged


def test_each_kind_is_paired_for_itself() -> None:
    layers = [FakeLayer(heads=heads) for heads in (3, 4, 3, 4, 3)]
    assert groups_of(layers, start_layer=0) == [(0, 2), (1, 3)]


@given(
    windows=st.lists(st.sampled_from([0, 512]), min_size=2, max_size=40),
    size=st.integers(2, 5),
)
def test_groups_are_neighbours_of_full_attention(windows: list[int], size: int) -> None:
    full = [layer for layer, window in enumerate(windows) if not window]
    if len(windows) < size or len(full) < size:
        return
    merged = groups_of(windows_of(*windows), group_size=size)
    assert [layer for group in merged for layer in group] == full[-len(merged) * size :]
    assert all(len(group) == size for group in merged)
    assert len(merged) * size >= len(full) // 2


@pytest.mark.parametrize(
    ("layers", "options", "remedy"),
    [
        (windows_of(*[512] * 8), {}, "--mode exact"),
        (windows_of(512, 512, 0, 512), {}, "--mode subspace, which"),
        (windows_of(512, 0, 0, 512, 0), {"start_layer": 3}, "--start-layer 1"),
        (windows_of(512, 0, 512, 0), {"group_size": 3}, "--group-size 2 --start-layer 1"),
    ],
)
def test_a_model_with_nothing_to_merge_is_refused(
    layers: list[FakeLayer], options: dict[str, object], remedy: str
) -> None:
    with pytest.raises(PlanError, match=f"nothing can be merged; use {remedy}"):
        groups_of(layers, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"start_layer": 8}, "--start-layer 8 is not within 0..6"),
        ({"group_size": 1}, "--group-size 1 is not within 2..8"),
        ({"slerp_t": 1.5}, "--slerp-t 1.5"),
        ({"code_bits": 2}, "--code-bits 2"),
        ({"magnitude": "lower"}, "--magnitude 'lower'"),
        ({"retention": "top:5"}, "retention 'top:5' is unknown"),
        ({"retention": "threshold:2"}, "2 is not within -1..1"),
        ({"retention": "minmax:x"}, "'x' is not a number"),
        (
            {"retention": "budget:0.05", "retention_capacity": 0.2},
            "budget:FRACTION is the capacity",
        ),
        ({"window": -1}, "the window is -1"),
        ({"rewind_slack": 0}, "the rewind slack is 0"),
    ],
)
def test_wrong_options_name_the_option_and_its_value(
    options: dict[str, object], words: str
) -> None:
    with pytest.raises(PlanError) as error:
        groups_of([FakeLayer()] * 8, **options)
    assert words in str(error.value)


def test_the_budget_is_the_capacity() -> None:
    assert Retention.parse("budget:0.1") == Retention("budget", 0.1, 0.1)


def test_a_plan_round_trips_through_json_data() -> None:
    plan = ExportOptions(mode="paper", retention="threshold:0.5").make_plan([FakeLayer()] * 8, 512)
    assert Plan.from_dict(plan.to_dict()) == plan


def test_a_plan_must_cover_each_layer_once() -> None:
    with pytest.raises(PlanError, match="do not cover each layer once"):
        Plan("exact", (Group((0,)), Group((0,))), 512)


def test_an_option_that_the_mode_would_ignore_is_refused() -> None:
    """`--code-bits 4` alone would look as if it had worked."""
    with pytest.raises(PlanError, match="--code-bits 4 has no effect with --mode exact"):
        ExportOptions(mode="exact", code_bits=4).check()
