"""Evicted tokens are as if they were hidden; what is left stays where the kernels look for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minicache.plugins.reference import run_group
from minicache.runtime.errors import CapacityError
from tests.helpers import assert_close, make_text
from tests.plugins.evicting import (
    CAPACITY,
    MODES,
    SEGMENT,
    SLACK,
    TOKENS,
    EvictingRow,
    Judge,
    empty_state,
    evicting_attributes,
    tables_of,
)
from tests.plugins.walk import ReferenceGroup


@pytest.mark.parametrize("layout", ["row", "tile"])
@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=12)
@given(data=st.data())
def test_evicting_is_hiding(mode: str, layout: str, data: st.DataObject) -> None:
    """Two ragged rows that evict, go back by up to X tokens and on, again and again."""
    attributes = evicting_attributes(mode, code_layout=layout)
    text = make_text(attributes, TOKENS, batch=2, seed=data.draw(st.integers(0, 9), "text"))
    most = data.draw(st.sampled_from([3, CAPACITY]), "M") if mode == "slerp-budget" else CAPACITY
    group = ReferenceGroup(
        attributes, empty_state(attributes, 2, CAPACITY, most), tables_of(attributes)
    )
    judge, rows = Judge(attributes, 2, most), [EvictingRow(attributes) for _ in range(2)]
    past, furthest = [0, 0], [0, 0]
    for number in range(data.draw(st.integers(2, 6), "calls")):
        most_new = 70 if number == 0 else data.draw(st.sampled_from([1, SLACK, 30]), "most")
        new = [data.draw(st.integers(0, min(most_new, TOKENS - p)), "new") for p in past]
        call = text.call(past, new, slots=max(1, *new))
        expected = judge.step(text, call, [row.held for row in rows])
        for layer, (mine, hers) in enumerate(zip(group.step(call), expected, strict=True)):
            assert_close(mine, hers, 1e-6, f"layer {layer}")
        past = [p + n for p, n in zip(past, new, strict=True)]
        furthest = [max(pair) for pair in zip(past, furthest, strict=True)]
        for index, row in enumerate(rows):
            row.set_length(past[index])
            if data.draw(st.booleans(), "evicts"):
                row.evict(group, index, row.draw(data, group.state, index))
            floor = max(0, furthest[index] - SLACK)
            if "minmax" not in mode and floor < past[index]:
                past[index] = data.draw(st.integers(floor, past[index]), "back to")
                row.set_length(past[index])


@pytest.mark.parametrize("mode", ["exact", "slerp", "subspace"])
def test_a_row_can_be_longer_than_its_capacity(mode: str) -> None:
    """48 slots carry a text of 112 tokens; a token more than they hold is refused."""
    attributes = evicting_attributes(mode)
    text = make_text(attributes, TOKENS)
    group = ReferenceGroup(attributes, empty_state(attributes, 1, 48, 0), tables_of(attributes))
    judge, row = Judge(attributes, 1, 0), EvictingRow(attributes)
    for past in range(TOKENS):
        if len(row.held) == 48:
            with pytest.raises(CapacityError, match="holds 48 tokens"):
                group.step(text.call([past], [1]))
            gone = np.zeros(48, bool)
            first = np.flatnonzero(np.array(row.held) >= 2)[0]
            gone[first + 1 : first + 17] = True
            wide = np.array(row.held) // SEGMENT
            if mode == "subspace" and len(set(wide[gone])) > 1:  # whole blocks of one segment
                gone[:] = False
                gone[np.flatnonzero(wide == wide[20])[:16]] = True
            row.evict(group, 0, gone)
        call = text.call([past], [1])
        expected = judge.step(text, call, [row.held])
        for mine, hers in zip(group.step(call), expected, strict=True):
            assert_close(mine, hers, 1e-6)
        row.set_length(past + 1)


@pytest.mark.parametrize("observes", [-1, 1, 4])
@pytest.mark.parametrize("mode", ["exact", "slerp-budget", "subspace"])
def test_attention_mass_is_what_the_observed_queries_gave(mode: str, observes: int) -> None:
    """Summed by hand over calls, for every token that is left, new ones included."""
    attributes = evicting_attributes(mode, observes=observes, num_heads=2, kv_num_heads=1)
    plain = evicting_attributes(mode, num_heads=2, kv_num_heads=1)
    text = make_text(attributes, TOKENS)
    tables, row = tables_of(attributes), EvictingRow(attributes)
    group = ReferenceGroup(attributes, empty_state(attributes, 1, CAPACITY, 4), tables)
    twin = ReferenceGroup(plain, empty_state(plain, 1, CAPACITY, 4), tables)
    total, past = 0.0, 0
    for new in (60, 1, 3, 20, 1):
        call = text.call([past], [new])
        for mine, hers in zip(group.step(call), twin.step(call), strict=True):
            np.testing.assert_array_equal(mine, hers)
        past += new
        total += new if observes < 0 else min(new, observes)
        row.set_length(past)
        mass = group.state["attention_mass"][0]
        assert (mass[: len(row.held)] >= 0).all()
        assert mass[: len(row.held)].sum() == pytest.approx(total, rel=1e-5)
        assert np.isnan(mass[len(row.held) :]).all() or new != 60
        if new == 60:
            gone = np.zeros(60, bool)
            gone[4:20] = True
            total -= float(mass[:60][gone].sum())
            for each in (group, twin):
                EvictingRow.evict(_copy(row), each, 0, gone)
            row.held = [p for p, goes in zip(row.held, gone, strict=True) if not goes]


def _copy(row: EvictingRow) -> EvictingRow:
    other = EvictingRow(row.attributes)
    other.set_length(row.length)
    other.held = list(row.held)
    return other


def test_mass_lies_at_the_slot_of_the_token() -> None:
    """A key that every query meets takes nearly all of it, before and after tokens have gone."""
    attributes = evicting_attributes("exact", observes=-1)
    text = make_text(attributes, TOKENS)
    text.key[:, :, 40] = 0
    text.query[..., 0], text.key[:, :, 40, :, 0] = 1.0, 60.0
    group = ReferenceGroup(attributes, empty_state(attributes, 1, CAPACITY, 0))
    row = EvictingRow(attributes)
    group.step(text.call([0], [60]))
    row.set_length(60)
    assert np.argmax(group.state["attention_mass"][0, :60]) == 40
    gone = np.zeros(60, bool)
    gone[3:35] = True
    row.evict(group, 0, gone)
    assert np.argmax(group.state["attention_mass"][0, :28]) == 8
    group.step(text.call([60], [5]))
    assert np.argmax(group.state["attention_mass"][0, :33]) == 8
    assert group.state["attention_mass"][0, 8] == pytest.approx(25, abs=0.6)


@pytest.mark.parametrize(
    ("mode", "table", "words"),
    [
        ("exact", [1, 1], "segments have"),
        ("exact", [0, 41], "segments have"),
        ("exact", [0, -1], "segments have"),
        ("slerp", [0, 36], "segments have"),
        ("subspace", [0, 31, 31, 31, 31], "segments have"),
        ("subspace", [0, 16, 0, 0, 0], "segments have"),
        ("subspace", [0, 0, 8, 8, 8], "segments have"),
    ],
)
def test_a_table_that_no_policy_writes_is_refused(mode: str, table: list[int], words: str) -> None:
    """More tokens than a segment has codes, or fewer than before."""
    attributes = evicting_attributes(mode)
    text = make_text(attributes, TOKENS)
    group = ReferenceGroup(
        attributes, empty_state(attributes, 1, CAPACITY, 0), tables_of(attributes)
    )
    group.step(text.call([0], [40]))
    group.state["evicted"][0] = table
    with pytest.raises(ValueError, match=words):
        group.step(text.call([40], [1]))


def test_a_text_beyond_the_table_is_refused() -> None:
    """Four segments of 32 tokens are the longest text."""
    attributes = evicting_attributes("subspace")
    state = empty_state(attributes, 1, 160, 0)
    text = make_text(attributes, 130)
    with pytest.raises(CapacityError, match="4 segments of 32 tokens"):
        run_group(attributes, state, *text.call([0], [129]).arguments, tables=tables_of(attributes))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"evicts": 2}, "evicts is 2"),
        ({"evicts": 0, "observes": 4}, "nothing reads attention_mass"),
        ({"observes": -2}, "observes is -2"),
        ({"has_bias": 1}, "has_bias"),
        ({"local_window_size": 8, "ring_slots": 12}, "local_window_size"),
    ],
)
def test_contradictions_are_refused(given: dict[str, Any], words: str) -> None:
    """What depends on positions cannot evict, and scores need a state to evict from."""
    attributes = {**evicting_attributes("exact"), **given}
    text = make_text(attributes, 8)
    state = empty_state({**attributes, "local_window_size": 0}, 1, 16, 0)
    with pytest.raises(ValueError, match=words):
        run_group(attributes, state, *text.call([0], [1], capacity=16).arguments)
