"""The public tensor primitives: directions, SLERP, merging and restoring."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicache.plugins.reference import (
    merge_group,
    merge_pair,
    restore,
    retention_mask,
    similarity,
    slerp,
    to_magnitude_direction,
)
from tests.plugins.plain import plain_slerp
from tests.tolerances import SAME_FORMULA

SIZES = st.integers(2, 128)
SEEDS = st.integers(0, 2**32 - 1)


def units(seed: int, count: int, size: int) -> np.ndarray:
    """Random unit vectors ``[count, size]``."""
    vectors = np.random.default_rng(seed).standard_normal((count, size))
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


@given(SEEDS, SIZES)
def test_direction_is_unit_and_magnitude_restores(seed: int, size: int) -> None:
    """Magnitude times direction is the vector, and the direction has length 1."""
    x = np.random.default_rng(seed).standard_normal((3, 4, size)) * 7
    magnitude, direction = to_magnitude_direction(x)
    np.testing.assert_allclose(np.linalg.norm(direction, axis=-1), 1, rtol=SAME_FORMULA)
    np.testing.assert_allclose(restore(direction, magnitude), x, rtol=SAME_FORMULA)


def test_zero_vector_has_no_direction() -> None:
    """A zero vector splits into zero and zero, without NaN."""
    magnitude, direction = to_magnitude_direction(np.zeros((2, 8), np.float16))
    assert not magnitude.any()
    assert not direction.any()


@given(SEEDS, SIZES)
def test_slerp_endpoints_return_the_inputs(seed: int, size: int) -> None:
    """T = 0 gives a, t = 1 gives b."""
    a, b = units(seed, 2, size)
    np.testing.assert_allclose(slerp(a, b, 0.0), a, atol=SAME_FORMULA)
    if np.linalg.norm(a + b) > 1e-3:
        np.testing.assert_allclose(slerp(a, b, 1.0), b, atol=SAME_FORMULA)


@given(SEEDS, SIZES, st.floats(0, 1))
def test_slerp_output_has_unit_norm_and_divides_the_angle(seed: int, size: int, t: float) -> None:
    """The result lies on the sphere, at t times the angle from a."""
    a, b = units(seed, 2, size)
    merged = slerp(a, b, t)
    np.testing.assert_allclose(np.linalg.norm(merged), 1, rtol=1e-7)
    if abs(a @ b) < 0.999:
        angle = np.arccos(np.clip(a @ b, -1, 1))
        np.testing.assert_allclose(np.arccos(np.clip(a @ merged, -1, 1)), t * angle, atol=1e-6)
        np.testing.assert_allclose(merged, plain_slerp(a, b, t), atol=1e-7)


@pytest.mark.parametrize("angle", [0.0, 1e-12, 1e-7, 9e-5, 1.1e-4])
def test_nearly_collinear_directions_are_interpolated(angle: float) -> None:
    """Equal and nearly equal directions give a unit vector between them, without division by 0."""
    a, b = np.array([1.0, 0.0]), np.array([np.cos(angle), np.sin(angle)])
    expected = [np.cos(0.6 * angle), np.sin(0.6 * angle)]
    np.testing.assert_allclose(slerp(a, b, 0.6), expected, atol=1e-12)


@pytest.mark.parametrize("angle", [0.0, 1e-9, 9e-5])
def test_antipodal_directions_give_the_first(angle: float) -> None:
    """Opposite directions have no shortest arc: the lower layer's is taken."""
    a, b = np.array([1.0, 0.0]), np.array([-np.cos(angle), np.sin(angle)])
    np.testing.assert_array_equal(slerp(a, b, 0.6), a)


def test_zero_directions_give_way() -> None:
    """A zero vector leaves the other direction; two zero vectors leave zero."""
    a, zero = units(0, 1, 8)[0], np.zeros(8)
    np.testing.assert_array_equal(slerp(a, zero, 0.6), a)
    np.testing.assert_array_equal(slerp(zero, a, 0.6), a)
    np.testing.assert_array_equal(slerp(zero, zero, 0.6), zero)


def test_slerp_works_per_vector() -> None:
    """Degenerate and ordinary pairs of one array do not disturb each other."""
    a, b = units(1, 6, 8).reshape(2, 3, 8)
    a[0], b[1] = b[0], -a[1]
    whole = slerp(a, b, 0.3)
    for row in range(3):
        np.testing.assert_array_equal(whole[row], slerp(a[row], b[row], 0.3))


@given(SEEDS, st.floats(0.05, np.pi - 0.05))
def test_error_of_a_merged_direction_is_known(seed: int, angle: float) -> None:
    """At t = 0.5 both layers are off by 2 sin(theta / 4) of their magnitude."""
    basis = np.linalg.qr(np.random.default_rng(seed).standard_normal((12, 2)))[0].T
    x_a, x_b = 3 * basis[0], 5 * (np.cos(angle) * basis[0] + np.sin(angle) * basis[1])
    direction, magnitudes = merge_pair(x_a, x_b, 0.5)
    for x, magnitude in zip((x_a, x_b), magnitudes, strict=True):
        error = np.linalg.norm(restore(direction, magnitude) - x) / np.linalg.norm(x)
        np.testing.assert_allclose(error, 2 * np.sin(angle / 4), atol=1e-9)


def test_similar_layers_merge_with_low_error() -> None:
    """Layers of cosine above 0.999 come back within 2 % of their length."""
    rng = np.random.default_rng(2)
    x_a = rng.standard_normal((32, 64))
    x_b = x_a + 0.03 * rng.standard_normal((32, 64))
    direction, magnitudes = merge_pair(x_a, x_b, 0.5)
    for layer, x in enumerate((x_a, x_b)):
        error = np.linalg.norm(restore(direction, magnitudes[:, layer]) - x, axis=-1)
        assert (error < 0.02 * np.linalg.norm(x, axis=-1)).all()


def test_own_magnitudes_survive_merging() -> None:
    """A layer three times as long as its partner stays three times as long."""
    x_a = np.random.default_rng(3).standard_normal((5, 16))
    direction, magnitudes = merge_pair(x_a, 3 * x_a, 0.6, magnitude="own")
    lengths = [
        np.linalg.norm(restore(direction, magnitudes[:, layer]), axis=-1) for layer in (0, 1)
    ]
    np.testing.assert_allclose(lengths[1], 3 * lengths[0], rtol=SAME_FORMULA)
    np.testing.assert_allclose(lengths[0], np.linalg.norm(x_a, axis=-1), rtol=SAME_FORMULA)


@pytest.mark.parametrize(
    ("magnitude", "expected"), [("upper", 6.0), ("blended", 0.4 * 2 + 0.6 * 6)]
)
def test_shared_magnitudes(magnitude: str, expected: float) -> None:
    """``upper`` keeps the last layer's length, ``blended`` interpolates with weight t."""
    x_a, x_b = 2 * units(4, 2, 8)[:1], 6 * units(4, 2, 8)[1:]
    _, magnitudes = merge_pair(x_a, x_b, 0.6, magnitude)
    np.testing.assert_allclose(magnitudes, [[expected]], rtol=SAME_FORMULA)


def test_running_mean_of_more_layers_at_half() -> None:
    """At t = 0.5 directions on one great circle merge into the mean of their angles."""
    angles = np.array([0.1, 0.5, 0.3, 0.9])
    layers = [np.array([np.cos(x), np.sin(x)]) for x in angles]
    direction, magnitudes = merge_group(layers, 0.5)
    mean = angles.mean()
    np.testing.assert_allclose(direction, [np.cos(mean), np.sin(mean)], atol=1e-12)
    assert magnitudes.shape == (4,)


def test_opposite_directions_are_all_retained() -> None:
    """Layers that point away from each other are kept in full by the threshold policy."""
    x = np.random.default_rng(5).standard_normal((20, 16))
    assert retention_mask(similarity(x, -x), "threshold", threshold=0.9).all()
    assert not retention_mask(similarity(x, 2 * x), "threshold", threshold=0.9).any()


def test_cosine_cases() -> None:
    """Same, opposite, orthogonal and zero vectors have cosine 1, -1, 0 and, by convention, 1."""
    a = np.array([[1.0, 0.0]] * 4)
    b = np.array([[2.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    np.testing.assert_array_equal(similarity(a, b), [1, -1, 0, 1])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: merge_group([], 0.5), "no layers"),
        (lambda: merge_pair(np.ones(2), np.ones(2), 0.5, "lower"), "'lower'"),
        (lambda: retention_mask([0.5], "top"), "'top'"),
        (lambda: retention_mask([0.5], "budget"), "capacity"),
    ],
)
def test_mistakes_are_named(call, words: str) -> None:  # type: ignore[no-untyped-def]
    """A wrong argument raises ValueError with the value that was found."""
    with pytest.raises(ValueError, match=words):
        call()
