"""Retention: the set of tokens that keep their full vectors, and their slots in the side buffer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicache.plugins.reference import group_similarity, retention_mask
from minicache.plugins.reference.retention import (
    RetentionUpdate,
    active_slots,
    update_range,
    update_retained,
)

COSINES = st.lists(st.integers(-100, 100).map(lambda n: n / 100), min_size=1, max_size=40)


def update(  # type: ignore[no-untyped-def]
    position, similarities, cached, encoded, policy, held=None, extra=0
) -> RetentionUpdate:
    """One call, with threshold 0.5 and gamma 0.2."""
    new = np.array(similarities, np.float32)
    return update_retained(
        np.array(position, np.int32),
        np.array(held if held is not None else np.zeros(len(position)), np.float32),
        cached,
        encoded,
        new,
        policy,
        threshold=0.5,
        gamma=0.2,
        similarity_range=(float(new.min(initial=0)), float(new.max(initial=1))),
        extra=extra,
    )


@given(COSINES, st.integers(0, 20))
def test_policies_are_bounded_by_the_capacity(cosines: list[float], capacity: int) -> None:
    """No policy retains more than M; budget fills M; retained and merged tokens add up."""
    for policy in ("threshold", "minmax", "budget"):
        mask = retention_mask(cosines, policy, threshold=0.5, gamma=0.2, capacity=capacity)
        assert mask.sum() <= capacity
        assert mask.sum() + (~mask).sum() == len(cosines)
    assert mask.sum() == min(capacity, len(cosines))


@given(COSINES, st.integers(1, 20))
def test_budget_keeps_the_least_similar(cosines: list[float], capacity: int) -> None:
    """Everything retained is at most as similar as everything merged; ties go to the earlier."""
    mask = retention_mask(cosines, "budget", capacity=capacity)
    order = sorted(range(len(cosines)), key=lambda token: (cosines[token], token))
    assert set(np.flatnonzero(mask)) == set(order[:capacity])


def test_minmax_reads_the_paper_with_cosines() -> None:
    """Tokens in the lowest gamma share of the range are kept, not the most similar ones."""
    mask = retention_mask([0.9, 0.1, 0.5, 0.15, 1.0], "minmax", gamma=0.1)
    assert list(np.flatnonzero(mask)) == [1, 3]


def test_none_retains_nothing() -> None:
    """The policy ``none`` retains nothing."""
    assert not retention_mask([-1.0, 0.0], "none").any()


def test_new_tokens_take_free_slots_in_order() -> None:
    """A token that stays keeps its slot; new ones fill the free slots upwards, by position."""
    after = update([-1, 7, -1, 5], [0.1, 0.9, 0.2, 0.3], (4, 10), (10, 14), "threshold")
    assert list(after.position) == [10, 7, 12, 5]
    assert after.written == {10: 0, 12: 2}
    assert list(after.active) == [5, 7, 10, 12]


def test_positions_taken_back_are_freed() -> None:
    """Entries at or beyond c0, or below the sinks, are not in L and lose their slot."""
    after = update([12, 7, 3, 9], [0.9], (4, 10), (10, 11), "threshold")
    assert list(after.position) == [-1, 7, -1, 9]


def test_a_token_encoded_again_keeps_its_slot() -> None:
    """Running the same call twice leaves every retained token where it is."""
    once = update([-1, 8, -1], [0.1, 0.2], (4, 10), (10, 12), "threshold")
    assert list(update(once.position, [0.1, 0.2], (4, 10), (10, 12), "threshold").position) == list(
        once.position
    )


def test_budget_evicts_the_most_similar() -> None:
    """A less similar new token takes the slot of the most similar one."""
    after = update([5, 6, 7], [0.2, 0.95], (4, 8), (8, 10), "budget", held=[0.1, 0.9, 0.3])
    assert list(after.position) == [5, 8, 7]
    assert list(after.active) == [5, 7, 8]
    assert after.written == {8: 1}


def test_budget_stores_more_than_it_reads() -> None:
    """Of M + X stored tokens the M least similar are read: going back gives the places back."""
    after = update([5, 6, 7], [0.2, 0.95], (4, 8), (8, 10), "budget", [0.1, 0.9, 0.3], extra=1)
    assert list(after.position) == [5, 8, 7]
    assert list(after.active) == [5, 8]
    slots = active_slots(after.position, after.similarity, (4, 8), "budget", 2)
    assert list(after.position[slots]) == [5, 7]
    assert not active_slots(after.position, after.similarity, (4, 8), "budget", 0).size


@given(COSINES, st.integers(0, 5), st.integers(1, 8), st.integers(0, 40))
def test_the_range_of_a_prefix_is_found_again(
    cosines: list[float], sinks: int, slots: int, call: int
) -> None:
    """The last X + 1 entries are those of the prefixes, however the text was cut into calls."""
    values = np.array(cosines, np.float32)
    ranges = np.full((slots, 2), np.nan, np.float32)
    first = 0
    while first < values.size:
        end = min(first + 1 + call % 7, values.size)
        encoded = sinks + first, sinks + end
        limits = update_range(ranges, sinks, encoded, values[first:end])
        assert limits == (values[:end].min(), values[:end].max())
        first, call = end, call // 2
    for end in range(max(1, values.size - slots + 1), values.size + 1):
        assert tuple(ranges[end % slots]) == (values[:end].min(), values[:end].max())


def test_budget_ties_go_to_the_smaller_position() -> None:
    """Among equal similarities the smaller position stays."""
    after = update([5, 6], [0.5, 0.5], (4, 8), (8, 10), "budget", held=[0.5, 0.5])
    assert list(after.position) == [5, 6]


@given(COSINES, st.integers(1, 12), st.sampled_from(["threshold", "budget"]))
def test_the_set_does_not_depend_on_the_chunks(
    cosines: list[float], capacity: int, policy: str
) -> None:
    """Token by token or all at once, threshold and budget retain the same tokens."""
    whole = update([-1] * capacity, cosines, (4, 4), (4, 4 + len(cosines)), policy)
    position, held = np.full(capacity, -1, np.int32), np.zeros(capacity, np.float32)
    for token, cosine in enumerate(cosines, start=4):
        step = update(position, [cosine], (4, token), (token, token + 1), policy, held=held)
        position = step.position
        for slot in step.written.values():
            held[slot] = cosine
    assert sorted(position) == sorted(whole.position)


def test_group_similarity_scopes() -> None:
    """``mean`` averages K and V, heads and pairs; ``any-head`` takes the worst of them."""
    keys = np.zeros((3, 2, 1, 2))
    keys[..., 0] = 1
    keys[2, 1, 0] = (0, 1)
    values = np.zeros_like(keys)
    assert group_similarity(keys, values, "mean") == np.float32(7 / 8)
    assert group_similarity(keys, values, "any-head") == 0
    assert group_similarity(keys[:1], values[:1]) == 1
    with pytest.raises(ValueError, match="'any'"):
        group_similarity(keys, values, "any")
