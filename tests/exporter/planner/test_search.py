"""The search with a meter that knows a formula: it finds what was asked for, or says why not."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from minicache.exporter.baselines.subspace_simulation import SubspaceSimulation
from minicache.exporter.calibration.calibration import Calibration
from minicache.exporter.planner.candidate import fp16_bytes
from minicache.exporter.planner.coded_layer import CodedLayer
from minicache.exporter.planner.goal import Goal
from minicache.exporter.planner.journal import Journal
from minicache.exporter.planner.measured_loss import MeasuredLoss
from minicache.exporter.planner.search import FINALISTS, Search, SearchResult
from minicache.runtime.errors import PlanError
from minicache.runtime.progress import Step
from tests.exporter.calibration.test_codec import make_calibration, make_layers

Formula = Callable[[SubspaceSimulation], float]
TOKENS = 1000


def by_bits(simulation: SubspaceSimulation) -> float:
    """A loss that depends on the size alone, and falls with it."""
    return float(np.exp(-1.5 * simulation.bits_per_element))


class FakeMeter:
    """Two documents of equal loss; counts the plans that are measured."""

    documents = (0, 1)

    def __init__(self, formula: Formula, extra: float = 1.0) -> None:
        self.formula, self.extra = formula, extra
        self.measured: list[SubspaceSimulation] = []
        self.probes = 0

    def measure(
        self, codecs: Sequence[Any], step: Step, scored: int | None = None
    ) -> list[MeasuredLoss]:
        losses = []
        for codec in codecs:
            if isinstance(codec, CodedLayer):
                kl, self.probes = 0.01, self.probes + 1
            else:
                self.measured.append(codec)
                kl = self.formula(codec)
            total = TOKENS * kl
            losses.append(
                MeasuredLoss([TOKENS] * 2, [total] * 2, [self.extra * total] * 2, [TOKENS] * 2)
            )
        return losses


@pytest.fixture(scope="module")
def shared() -> Calibration:
    return make_calibration(*make_layers(rank=12))


@pytest.fixture
def search(shared: Calibration) -> Callable[..., Search]:
    def make(meter: FakeMeter, goal: Goal | None = None, journal: Journal | None = None) -> Search:
        calibration = copy.copy(shared)
        calibration.sensitivities, calibration._bases = {}, {}
        return Search(
            calibration,
            meter,  # type: ignore[arg-type]
            goal or Goal(),
            sinks=4,
            window=16,
            journal=journal or Journal(),
        )

    return make


def chosen_of(result: SearchResult) -> dict[str, Any]:
    """The one row of the frontier that is marked, and that the rest is sorted."""
    rows = [point.to_dict() for point in result.frontier]
    assert [row["ratio"] for row in rows] == sorted(row["ratio"] for row in rows)
    (row,) = [row for row in rows if row["chosen"]]
    assert row["bytes_per_token"] == result.candidate.bytes_per_token
    assert row["kl"] == result.loss.kl_mean
    return row


@pytest.mark.parametrize("favourite", [1, 2, 3])
def test_of_the_finalists_at_a_ratio_the_least_measured_loss_wins(
    search: Callable[..., Search], favourite: int
) -> None:
    """Not the least predicted one, and never with more bytes than the ratio allows."""

    def formula(simulation: SubspaceSimulation) -> float:
        largest = max(len(group.layers) for group in simulation.groups)
        return 0.01 if largest == favourite else 0.02

    meter = FakeMeter(formula)
    made = search(meter, Goal(ratio=4.0))
    result = made.run()
    plain = fp16_bytes(made.calibration)
    assert result.candidate.structure.group_size == favourite
    assert result.candidate.bytes_per_token <= plain / 4
    assert result.candidate.ratio >= 4.0
    assert result.loss.kl_mean == pytest.approx(0.01)
    within = [point for point in result.frontier if point.bytes_per_token <= plain / 4]
    assert len(within) >= FINALISTS
    chosen_of(result)


@pytest.mark.parametrize("limit", [24, 60, 131, 200])
def test_bytes_per_token_are_never_exceeded(search: Callable[..., Search], limit: int) -> None:
    """What was measured is what was promised, down to the smallest codes."""
    meter = FakeMeter(by_bits)
    result = search(meter, Goal(bytes_per_token=limit)).run()
    assert result.candidate.bytes_per_token <= limit
    codes = [simulation.cache_bytes(1) - simulation.cache_bytes(0) for simulation in meter.measured]
    assert result.candidate.bytes_per_token in codes
    assert sorted(layer for group in result.candidate.groups for layer in group.layers) == [0, 1, 2]


@pytest.mark.parametrize("limit", [0.3, 0.05, 0.006, 0.002])
def test_a_bound_on_the_loss_gives_the_largest_ratio_that_passes(
    search: Callable[..., Search], limit: float
) -> None:
    """The winner passes; of everything that was measured, what is smaller fails."""
    result = search(FakeMeter(by_bits), Goal(max_kl=limit)).run()
    assert result.loss.kl_mean <= limit
    row = chosen_of(result)
    smaller = [point for point in result.frontier if point.ratio > row["ratio"]]
    assert all(point.kl > limit for point in smaller)
    assert smaller or result.candidate.ratio >= 15
    # Halving leaves little room: the next larger ratio that was tried is near.
    assert not smaller or min(point.ratio for point in smaller) < 1.25 * row["ratio"]


def test_ratios_that_no_code_reaches_end_the_ladder(search: Callable[..., Search]) -> None:
    """Layers apart cannot be coded smaller than 5.3 times here: that is the answer, no error."""
    goal = Goal(max_kl=10.0, max_group_size=1)
    result = search(FakeMeter(by_bits), goal).run()
    assert 4.0 <= result.candidate.ratio <= 16 / 3 + 1e-9


def test_without_a_goal_one_percent_of_perplexity_is_the_bound(
    search: Callable[..., Search],
) -> None:
    """The upper end of the interval; both documents lose alike here, so that it has no width."""
    result = search(FakeMeter(by_bits)).run()
    assert result.loss.interval()[1] <= 1.01
    smaller = [p for p in result.frontier if p.ratio > result.candidate.ratio]
    assert smaller and all(max(p.perplexity_ratio_high - 1, p.kl) > 0.01 for p in smaller)


def test_without_a_goal_a_gain_of_perplexity_does_not_excuse_another_model(
    search: Callable[..., Search],
) -> None:
    """On few tokens a damaged model may look better by chance; KL says that it is another."""
    with pytest.raises(PlanError, match=r"KL 0\.5000"):
        search(FakeMeter(lambda _: 0.5, extra=-0.1)).run()


@pytest.mark.parametrize(
    ("goal", "formula", "words"),
    [
        (Goal(ratio=100.0), by_bits, ["3 coded bytes", "take 24 (ratio 16.0)", "--code-heads any"]),
        (Goal(bytes_per_token=71, max_group_size=1), by_bits, ["71 coded bytes", "take 72"]),
        (Goal(ratio=4.0, max_kl=1e-6), by_bits, ["ratio 4.", "KL of 0.00", "--max-kl 1e-06"]),
        (Goal(max_kl=1e-6), by_bits, ["at ratio 3.", "more than --max-kl 1e-06"]),
        (Goal(), lambda _: 0.4, ["bits per element cost more than 1 %", "0.4000", "--mode exact"]),
    ],
)
def test_goals_out_of_reach_are_told_with_numbers(
    search: Callable[..., Search], goal: Goal, formula: Formula, words: list[str]
) -> None:
    with pytest.raises(PlanError) as error:
        search(FakeMeter(formula), goal).run()
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("goal", [Goal(ratio=4.0, minutes=1e-9), Goal(max_kl=9.0, minutes=1e-9)])
def test_after_the_deadline_nothing_more_is_measured(
    search: Callable[..., Search], goal: Goal
) -> None:
    """One plan is, so that there is something to export."""
    meter = FakeMeter(by_bits)
    result = search(meter, goal).run()
    assert len(meter.measured) == 1 == len(result.frontier)


def test_a_second_search_measures_only_what_is_new(search: Callable[..., Search]) -> None:
    """The same journal, as after an interrupted export or for another ratio."""
    journal = Journal()
    first, again, other = FakeMeter(by_bits), FakeMeter(by_bits), FakeMeter(by_bits)
    result = search(first, Goal(ratio=4.0), journal).run()
    repeated = search(again, Goal(ratio=4.0), journal).run()
    assert repeated.candidate == result.candidate and repeated.loss == result.loss
    assert repeated.sensitivities == result.sensitivities
    assert again.measured == [] and again.probes == 0
    search(other, Goal(ratio=8.0), journal).run()
    assert other.probes == 0 and other.measured


def test_losses_that_are_no_numbers_never_win(search: Callable[..., Search]) -> None:
    """A NaN compares with nothing, and must not be taken for the best."""

    def formula(simulation: SubspaceSimulation) -> float:
        return 0.02 if max(len(group.layers) for group in simulation.groups) == 1 else float("nan")

    result = search(FakeMeter(formula), Goal(ratio=4.0)).run()
    assert result.loss.kl_mean == pytest.approx(0.02)
    with pytest.raises(PlanError, match="KL of nan"):
        search(FakeMeter(lambda _: float("nan")), Goal(ratio=4.0, max_kl=0.1)).run()
