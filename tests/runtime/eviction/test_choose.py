"""Choosing what goes: the least worth, in whole blocks of each segment."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from minicache.runtime.eviction.choose import BLOCK, choose_evicted


@st.composite
def rows(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Worth, what may go and segments of up to four segments' tokens."""
    sizes = draw(st.lists(st.integers(0, 50), min_size=1, max_size=4))
    segment = np.repeat(np.arange(len(sizes)), sizes)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    worth = rng.choice([*rng.standard_normal(20), np.nan, np.inf], len(segment))
    may_go = rng.random(len(segment)) < draw(st.sampled_from([0.0, 0.5, 0.9, 1.0]))
    return worth, may_go, segment


@given(row=rows(), number=st.integers(-5, 160))
def test_whole_blocks_go_of_what_may_go(
    row: tuple[np.ndarray, np.ndarray, np.ndarray], number: int
) -> None:
    """From each segment a multiple of 16, nothing protected, and less than a block too many."""
    worth, may_go, segment = row
    gone = choose_evicted(worth, may_go, segment, number)
    counts = np.bincount(segment[gone], minlength=4)
    may_go = may_go & (worth < np.inf) | (may_go & np.isnan(worth))
    possible = np.bincount(segment[may_go], minlength=4) // BLOCK * BLOCK
    assert not (gone & ~may_go).any()
    assert not (counts % BLOCK).any()
    assert gone.sum() < max(number, 0) + BLOCK
    assert gone.sum() >= min(max(number, 0), possible.sum())


@given(row=rows(), number=st.integers(1, 160))
def test_what_goes_is_worth_no_more_than_what_stays(
    row: tuple[np.ndarray, np.ndarray, np.ndarray], number: int
) -> None:
    """Within a segment, by worth and then by age."""
    worth, may_go, segment = row
    gone = choose_evicted(worth, may_go, segment, number)
    price = np.where(np.isnan(worth), -np.inf, worth)
    for at in np.unique(segment):
        mine = np.flatnonzero(may_go & (segment == at) & (price < np.inf))
        went = [(price[i], i) for i in mine if gone[i]]
        stayed = [(price[i], i) for i in mine if not gone[i]]
        assert not went or not stayed or max(went) < min(stayed)


def test_a_choice_that_fits_blocks_is_taken_as_it_is() -> None:
    """The 32 cheapest of two segments, 16 of each, are what goes."""
    worth = np.ones(80)
    cheap = np.r_[3:19, 45:61]
    worth[cheap] = 0
    gone = choose_evicted(worth, np.ones(80, bool), np.repeat([0, 1], 40), 32)
    assert np.flatnonzero(gone).tolist() == cheap.tolist()


def test_segments_with_the_largest_rest_give_one_block_more() -> None:
    """Of 24 wanted, 14 of one segment and 10 of another: the first gives 16, then the second."""
    worth = np.arange(80) % 40
    worth[40:] += 4  # the first 14 of segment 0 and the first 10 of segment 1 are the cheapest
    segment = np.repeat([0, 1], 40)
    assert choose_evicted(worth, np.ones(80, bool), segment, 16)[:40].sum() == 16
    both = choose_evicted(worth, np.ones(80, bool), segment, 24)
    assert (both[:40].sum(), both[40:].sum()) == (16, 16)
