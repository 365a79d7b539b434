"""Heads that are alike find each other."""

from __future__ import annotations

import numpy as np
import pytest

from minicache.exporter.calibration.matching import energy_share, match_heads


@pytest.mark.parametrize("heads", [1, 3, 8])
def test_permuted_heads_are_recovered(heads: int) -> None:
    rng = np.random.default_rng(heads)
    tokens, size = 2000, 6
    first = rng.standard_normal((heads, tokens, size))
    order = rng.permutation(heads)
    other = np.empty_like(first)
    for head, place in enumerate(order):
        turn = np.linalg.qr(rng.standard_normal((size, size)))[0]
        other[place] = first[head] @ turn + 0.3 * rng.standard_normal((tokens, size))
    own = np.swapaxes(first, 1, 2) @ first
    theirs = np.swapaxes(other, 1, 2) @ other
    cross = np.einsum("hti,ktj->hkij", first, other)
    assert match_heads(own, theirs, cross) == tuple(order)


def test_energy_share_of_equal_and_of_unrelated_heads() -> None:
    eye = np.eye(4)
    assert energy_share(eye, eye, eye) == pytest.approx(1.0)
    assert energy_share(eye, eye, np.zeros((4, 4))) == pytest.approx(0.5)


def test_zero_heads_are_matched_to_something() -> None:
    zeros = np.zeros((3, 4, 4))
    assert sorted(match_heads(zeros, zeros, np.zeros((3, 3, 4, 4)))) == [0, 1, 2]
