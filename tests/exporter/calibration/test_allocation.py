"""Bits go where the variance is, and the budget is kept."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicache.exporter import schemas
from minicache.exporter.calibration.allocation import MULTIPLES, allocate, bits_per_element
from minicache.runtime.errors import PlanError

RATE = {8: 1e-4, 4: 0.0115, 2: 0.119}  # of the variance that is left: uniform quantisers, normal


def distortions(variance: np.ndarray) -> dict[int, np.ndarray]:
    return {width: rate * variance for width, rate in RATE.items()}


@given(
    blocks=st.integers(2, 10),
    decay=st.floats(0.8, 0.999),
    budget=st.floats(0.6, 8.0),
    multiples=st.sampled_from([MULTIPLES, {8: 16, 4: 32, 2: 64}]),
)
def test_within_the_budget_and_no_other_layout_is_better(
    blocks: int, decay: float, budget: float, multiples: dict[int, int]
) -> None:
    elements = 8 * blocks
    variance = decay ** np.arange(elements)
    variance /= variance.sum()
    try:
        layout = allocate(variance, distortions(variance), budget, multiples)
    except PlanError:
        assert budget * elements - 16 < 8 * 16
        return
    if layout.components > elements:  # none fits, but a code still has to exist
        assert layout.bits == (2, multiples[2])
        return
    assert bits_per_element(layout.bits, elements) <= budget + 1e-6
    assert layout.components <= elements and len(layout.widths) == layout.components
    best = np.inf
    for eight, four, two in itertools.product(range(blocks + 1), repeat=3):
        if eight + four + two > blocks:
            continue
        if any(8 * n % multiples[w] for w, n in ((8, eight), (4, four), (2, two))):
            continue
        bits = (8, 8 * eight, 4, 8 * four, 2, 8 * two)
        if bits_per_element(bits, elements) > budget + 1e-6:
            continue
        widths = np.repeat(
            [8, 4, 2, 0], 8 * np.array([eight, four, two, blocks - eight - four - two])
        )
        rates = np.array([RATE.get(int(width), 1.0) for width in widths])
        best = min(best, float((rates * variance).sum()))
    assert layout.distortion == pytest.approx(best)


def test_segments_are_in_the_order_of_the_operator() -> None:
    variance = 0.97 ** np.arange(256)
    layout = allocate(variance, distortions(variance), 3.0)
    assert list(layout.bits[0::2]) == sorted(layout.bits[0::2], reverse=True)
    assert all(count % 8 == 0 and count > 0 for count in layout.bits[1::2])
    assert schemas.code_bytes(layout.bits) <= (3 * 256 - 16) // 8


def test_a_constant_zero_still_has_a_code() -> None:
    layout = allocate(np.zeros(64), {width: np.zeros(64) for width in RATE}, 4.0)
    assert layout.components >= 8 and layout.distortion == 0.0


def test_a_budget_below_the_smallest_code_is_refused() -> None:
    variance = np.ones(64)
    with pytest.raises(PlanError, match=r"at least 0\.750 bits, or join more layers"):
        allocate(variance, distortions(variance), 0.5)
