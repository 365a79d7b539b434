"""Sensitivities: measured losses over expected errors, kept within reason."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicache.exporter.calibration.calibration import Calibration
from minicache.exporter.planner.coded_layer import CodedLayer
from minicache.exporter.planner.measured_loss import MeasuredLoss
from minicache.exporter.planner.sensitivity import (
    HIGHEST,
    LOWEST,
    bounded,
    measure_sensitivities,
)
from minicache.runtime.progress import Step
from tests.exporter.calibration.test_codec import HEADS, LAYERS, make_calibration, make_layers

LOSSES = {"key": (0.02, 0.05, 0.01), "value": (0.3, 0.1, 0.2)}


class FakeMeter:
    """Says what each layer's keys and values cost."""

    documents = (0, 1)

    def __init__(self) -> None:
        self.probes: list[CodedLayer] = []

    def measure(self, codecs: Sequence[CodedLayer], step: Step, scored: int) -> list[MeasuredLoss]:
        self.probes = list(codecs)
        costs = [LOSSES[probe.kind][probe.codec.layers[0]] for probe in codecs]
        return [MeasuredLoss([50, 50], [50 * cost] * 2, [0.0] * 2, [50] * 2) for cost in costs]


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    return make_calibration(*make_layers(rank=12))


def test_the_prediction_is_the_measured_loss_where_it_was_measured(
    calibration: Calibration,
) -> None:
    """Weighted by them, the error that each probe's codec expects is the loss that it had."""
    meter = FakeMeter()
    found = measure_sensitivities(calibration, meter, sinks=3, window=9, quiet=True)  # type: ignore[arg-type]
    assert len(meter.probes) == 2 * LAYERS
    assert {(probe.sinks, probe.window) for probe in meter.probes} == {(3, 9)}
    weighted = copy.copy(calibration)
    weighted._bases = {}
    weighted.weigh(found)
    for probe in meter.probes:
        layer = probe.codec.layers[0]
        bits = probe.bits_per_element
        codec = weighted.codec((layer,), HEADS, bits, bits)
        code = codec.key if probe.kind == "key" else codec.value
        energy = weighted.basis(probe.kind, (layer,), HEADS).energy
        assert code.distortion * energy == pytest.approx(LOSSES[probe.kind][layer], rel=1e-3)


@given(
    row=st.lists(
        st.one_of(
            st.floats(1e-9, 1e9),
            st.sampled_from([0.0, -1e-12, float("nan"), float("inf"), -float("inf")]),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_bounded_rows_are_positive_and_near_their_median(row: list[float]) -> None:
    """Whatever was measured, the result can weigh a metric."""
    found = bounded(row)
    assert len(found) == len(row)
    assert all(0 < x < np.inf for x in found)
    assert max(found) / min(found) <= HIGHEST / LOWEST * (1 + 1e-9)


def test_believable_rows_stay_as_they_are() -> None:
    assert bounded([1.0, 2.0, 0.5, 9.0]) == (1.0, 2.0, 0.5, 9.0)


def test_zeros_outliers_and_nan_are_replaced() -> None:
    """By the lowest and highest share of the median of those that are positive."""
    found = bounded([1.0, 1.0, 1.0, 1000.0, 0.0, -3.0, float("nan")])
    assert found == (1.0, 1.0, 1.0, HIGHEST, LOWEST, LOWEST, LOWEST)
    assert set(bounded([0.0, 0.0])) == {LOWEST}
