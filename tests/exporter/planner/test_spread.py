"""Spreading a budget: never over it, and the best there is wherever the greedy choice ends."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicache.exporter.planner.rate_curve import RatePoint
from minicache.exporter.planner.spread import spread
from minicache.runtime.errors import PlanError

Curve = list[RatePoint]


@st.composite
def convex_curves(draw: st.DrawFn) -> Curve:
    """A few points; each step saves less per byte than the one before."""
    steps = draw(st.lists(st.integers(1, 12), max_size=3))
    slopes = sorted(
        draw(
            st.lists(st.integers(1, 10**6), min_size=len(steps), max_size=len(steps), unique=True)
        ),
        reverse=True,
    )
    size, loss = draw(st.integers(1, 20)), draw(st.integers(10**8, 10**9))
    curve = [RatePoint(size, float(loss), 1.0)]
    for step, slope in zip(steps, slopes, strict=True):
        size, loss = size + step, loss - step * slope
        curve.append(RatePoint(size, float(loss), 1.0))
    return curve


CURVES = st.lists(convex_curves(), min_size=1, max_size=4)


def total(points: Curve | tuple[RatePoint, ...]) -> tuple[int, float]:
    return sum(point.bytes for point in points), sum(point.loss for point in points)


def smallest(curves: list[Curve]) -> int:
    return sum(curve[0].bytes for curve in curves)


def best_loss(curves: list[Curve], budget: int) -> float:
    """By trying every choice."""
    fitting = [total(points) for points in itertools.product(*curves)]
    return min(loss for size, loss in fitting if size <= budget)


@given(curves=CURVES, spare=st.integers(0, 120))
def test_one_point_of_each_curve_within_the_budget(curves: list[Curve], spare: int) -> None:
    """Nothing that still fits is left on the table either."""
    budget = smallest(curves) + spare
    points = spread(curves, budget)
    size, _ = total(points)
    assert size <= budget
    for curve, point in zip(curves, points, strict=True):
        at = curve.index(point)
        assert at + 1 == len(curve) or size - point.bytes + curve[at + 1].bytes > budget


@given(curves=CURVES)
def test_optimal_at_every_budget_that_the_greedy_choice_reaches(curves: list[Curve]) -> None:
    """Budgets after the steps in the order of loss saved per byte; equal ones come together."""
    steps = [
        ((low.loss - high.loss) / (high.bytes - low.bytes), high.bytes - low.bytes)
        for curve in curves
        for low, high in itertools.pairwise(curve)
    ]
    budget = smallest(curves)
    for slope in [float("inf"), *sorted({slope for slope, _ in steps}, reverse=True)]:
        budget += sum(cost for other, cost in steps if other == slope)
        assert total(spread(curves, budget))[1] == pytest.approx(best_loss(curves, budget))


@given(curves=CURVES)
def test_a_large_budget_buys_everything(curves: list[Curve]) -> None:
    assert spread(curves, 10**6) == [curve[-1] for curve in curves]


def test_too_small_a_budget_is_refused_with_both_numbers() -> None:
    curves = [[RatePoint(10, 1.0, 1.0)], [RatePoint(13, 1.0, 1.0), RatePoint(20, 0.5, 2.0)]]
    with pytest.raises(PlanError, match=r"22 bytes per token are too few.* take 23.*--max-group"):
        spread(curves, 22)
    assert total(spread(curves, 23))[0] == 23
