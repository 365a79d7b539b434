"""Grouped quantisation: a case by hand, KIVI's formula, shared codes, bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.rivals.uniform import group_bits, group_within, quantise
from minicache.exporter.baselines.kivi import quantise_groups


def test_two_bits_by_hand() -> None:
    codes = quantise(np.array([[0.0, 1.0, 2.0, 3.0, -1.0, -0.4, 0.4, 2.0]]), 2, 4)
    np.testing.assert_array_equal(codes.levels, [[[0, 1, 2, 3], [0, 1, 1, 3]]])
    np.testing.assert_array_equal(codes.zero[..., 0], [[0, -1]])
    np.testing.assert_array_equal(codes.scale[..., 0], [[1, 1]])
    np.testing.assert_array_equal(codes.read(), [[0, 1, 2, 3, -1, 0, 0, 2]])


def test_shrinking_moves_the_ends_inwards_but_not_the_codes() -> None:
    x = np.array([0.0, 1.0, 2.0, 4.0])
    plain, shrunk = quantise(x, 1, 4), quantise(x, 1, 4, shrink=0.25)
    np.testing.assert_array_equal(plain.read(), [0, 0, 0, 4])  # a half rounds to the even level
    np.testing.assert_array_equal(shrunk.levels, plain.levels)
    np.testing.assert_array_equal(shrunk.read(), [1, 1, 1, 3])


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_it_is_kivi_at_groups_of_32(bits: int) -> None:
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    np.testing.assert_array_equal(quantise(x, bits, 32).read(), quantise_groups(x, bits))


def test_other_codes_are_read_through_own_scales() -> None:
    lower, upper = (
        quantise(np.array([0.0, 1, 2, 3]), 2, 4),
        quantise(np.array([30.0, 0, 0, 0]), 2, 4),
    )
    shared = upper.with_codes(lower)
    np.testing.assert_array_equal(shared.read(), [0, 10, 20, 30])
    assert (lower.nbytes, upper.nbytes, shared.nbytes) == (1 + 4, 1 + 4, 4)


def test_constant_groups_survive() -> None:
    for value in (0.0, 1.5, -1e-9):
        np.testing.assert_allclose(quantise(np.full((2, 8), value), 2, 4).read(), value, atol=1e-7)


@given(st.integers(1, 700), st.integers(1, 128))
def test_groups_divide_the_width(width: int, largest: int) -> None:
    group = group_within(width, largest)
    assert width % group == 0 and group <= largest
    assert not any(width % size == 0 for size in range(group + 1, min(width, largest) + 1))


@given(st.integers(1, 8), st.integers(1, 20), st.sampled_from([8, 32, 128]))
def test_bytes_held_are_bytes_counted(bits: int, groups: int, group: int) -> None:
    codes = quantise(np.ones((groups, group)), bits, group)
    assert codes.nbytes == groups * group * group_bits(bits, group) / 8
