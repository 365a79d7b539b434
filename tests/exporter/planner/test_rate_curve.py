"""Rate curves: convex, and their bytes are those of the codes that they promise."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicache.exporter import schemas
from minicache.exporter.calibration.calibration import KINDS, Calibration
from minicache.exporter.calibration.klt import Basis
from minicache.exporter.calibration.quantiser import WIDTHS
from minicache.exporter.planner.rate_curve import MOST_BITS, RatePoint, rate_curve
from tests.exporter.calibration.test_codec import make_calibration, make_layers

RATE = {8: 1e-4, 4: 0.0115, 2: 0.119}  # of the variance that is left: uniform quantisers, normal


def basis_of(variance: np.ndarray, energy: float) -> Basis:
    """As much of a basis as an allocation reads."""
    none = np.empty(0)
    elements = len(variance)
    distortion = {width: RATE[width] * variance for width in WIDTHS}
    vectors = np.broadcast_to(np.float32(0), (1, elements, elements))
    return Basis(((0,),), none, none, vectors, none, variance, distortion, energy)


def assert_convex(curve: list[RatePoint]) -> None:
    gains = []
    for low, high in itertools.pairwise(curve):
        assert low.bytes < high.bytes and low.loss > high.loss
        gains.append((low.loss - high.loss) / (high.bytes - low.bytes))
    assert all(before > after for before, after in itertools.pairwise(gains))


@given(
    blocks=st.integers(1, 24),
    decay=st.floats(0.7, 1.0),
    code_heads=st.sampled_from([1, 2, 5]),
    energy=st.floats(1e-6, 1e6),
)
def test_curves_are_convex_and_their_bytes_are_true(
    blocks: int, decay: float, code_heads: int, energy: float
) -> None:
    """A point's bits, given as a budget, yield exactly the point's bytes and loss."""
    elements = 8 * blocks
    variance = decay ** np.arange(elements)
    basis = basis_of(variance / variance.sum(), energy)
    curve = rate_curve(basis, code_heads)
    assert_convex(curve)
    assert curve[0].bytes == code_heads * (schemas.code_bytes((2, 8)) + 2)
    for point in curve:
        layout = basis.allocate(point.bits)
        assert code_heads * schemas.code_bytes(layout.bits) + 2 * code_heads == point.bytes
        assert layout.distortion * energy == pytest.approx(point.loss, rel=1e-9)
        assert point.bits * elements == pytest.approx(8 * point.bytes / code_heads)
        assert point.bits <= MOST_BITS + 48 / elements  # the smallest code of few elements


def test_a_signal_without_energy_gets_the_smallest_code_only() -> None:
    """Constant zeros: more bytes save nothing, so that no budget is spent on them."""
    curve = rate_curve(basis_of(np.zeros(64), 0.0), 2)
    assert [point.bytes for point in curve] == [2 * (schemas.code_bytes((2, 8)) + 2)]


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    return make_calibration(*make_layers(rank=12))


@pytest.mark.parametrize(("group", "code_heads"), [((0,), 2), ((0, 1, 2), 2), ((1, 2), 1)])
def test_real_codes_take_the_bytes_of_the_curve(
    calibration: Calibration, group: tuple[int, ...], code_heads: int
) -> None:
    """Every point of the curve of a fitted basis, made into tables, takes what it says."""
    for kind in KINDS:
        curve = rate_curve(calibration.basis(kind, group, code_heads), code_heads)
        assert_convex(curve)
        for point in (curve[0], curve[len(curve) // 2], curve[-1]):
            codec = calibration.codec(group, code_heads, point.bits, point.bits)
            code = codec.key if kind == "key" else codec.value
            assert code.encoder.shape[0] == code_heads
            size = schemas.code_bytes(code.bits)
            assert size * code_heads + 2 * code_heads == point.bytes
            assert code.bits_per_element == pytest.approx(point.bits)
