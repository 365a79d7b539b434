"""The CPU kernel on rows with evicted tokens, held to the reference at every call."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import make_text
from tests.plugins.comparison import Comparison
from tests.plugins.evicting import (
    CAPACITY,
    MODES,
    SLACK,
    TOKENS,
    EvictingRow,
    empty_state,
    evicting_attributes,
    tables_of,
)
from tests.plugins.ort_group import OrtGroup
from tests.plugins.walk import ReferenceGroup

HEADS = {"num_heads": 4, "kv_num_heads": 2}
ALIGNED = {"has_decoder": 1, "segment_length": 32}


class KernelGroup(Comparison):
    """The kernel, held to the reference at every call."""

    @property
    def state(self) -> dict[str, np.ndarray]:
        return self.kernel.state


@pytest.mark.parametrize("maths", ["fp32", "int16"])
@pytest.mark.parametrize("layout", ["row", "tile"])
@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=8)
@given(data=st.data())
def test_every_call_equals_the_reference(
    ort_library: Path, mode: str, layout: str, maths: str, data: st.DataObject
) -> None:
    """Two ragged rows that evict, go back by up to X tokens and on, with their masses."""
    if maths != "fp32" and (mode == "exact" or layout == "row"):
        pytest.skip("products with codes of tiles only")
    observes = data.draw(st.sampled_from([0, -1, 3]), "observes")
    sink = data.draw(st.integers(0, 1), "head sinks")
    attributes = evicting_attributes(
        mode, code_layout=layout, observes=observes, has_sink=sink, softcap=20.0 * sink, **HEADS
    )
    text = make_text(attributes, TOKENS, batch=2, seed=data.draw(st.integers(0, 9), "text"))
    state = empty_state(attributes, 2, CAPACITY, 6, np.float16 if mode != "exact" else np.float32)
    tables = tables_of(attributes)
    group = KernelGroup(OrtGroup(ort_library, attributes, state, tables=tables, maths=maths))
    rows, furthest = [EvictingRow(attributes) for _ in range(2)], [0, 0]
    past = [0, 0]
    for number in range(data.draw(st.integers(2, 6), "calls")):
        most = 70 if number == 0 else data.draw(st.sampled_from([1, SLACK, 30]), "most")
        new = [data.draw(st.integers(0, min(most, TOKENS - p)), "new") for p in past]
        group.step(text.call(past, new, slots=max(1, *new)))
        past = [p + n for p, n in zip(past, new, strict=True)]
        furthest = [max(pair) for pair in zip(past, furthest, strict=True)]
        for index, row in enumerate(rows):
            row.set_length(past[index])
            if data.draw(st.booleans(), "evicts"):
                row.evict(group, index, row.draw(data, group.state, index))
            floor = max(0, furthest[index] - SLACK)
            if floor < past[index]:
                past[index] = data.draw(st.integers(floor, past[index]), "back to")
                row.set_length(past[index])


@pytest.mark.parametrize("mode", ["exact", "slerp-budget", "subspace"])
def test_long_rows_are_split_among_threads(ort_library: Path, mode: str) -> None:
    """A text of 1,400 tokens in 720 slots; in decode steps, parts of it are attended apart."""
    attributes = evicting_attributes(mode, code_layout="tile", observes=-1, **HEADS)
    segments = {} if mode != "subspace" else {"segment_length": 256}
    attributes = {**attributes, **segments}
    tables = tables_of(attributes)
    text = make_text(attributes, 1400)
    state = empty_state(attributes, 1, 720, 30)
    if "evicted" in state and segments:
        state["evicted"] = np.zeros((1, 7), np.int32)
    group = KernelGroup(OrtGroup(ort_library, attributes, state, tables=tables, threads=2))
    row = EvictingRow(attributes)
    past, rng = 0, np.random.default_rng(1)
    while past < 1400:
        new = min(1 if rng.random() < 0.5 else 160, 1400 - past)
        if len(row.held) + new > 720:
            gone = np.zeros(len(row.held), bool)
            width = attributes["segment_length"] or 10_000
            held = np.array(row.held)
            if mode == "slerp-budget":
                stored = row.stored(group.state, 0)
            may = (held >= 2) & (held < past - 3 - SLACK)
            may &= ~np.isin(held, stored) if mode == "slerp-budget" else True
            for segment in np.unique(held // width):
                mine = rng.permutation(np.flatnonzero(may & (held // width == segment)))
                gone[mine[: len(mine) // 32 * 16]] = True
            row.evict(group, 0, gone)
        group.step(text.call([past], [new]))
        past += new
        row.set_length(past)


@pytest.mark.parametrize("dtype", [np.float16])
def test_half_precision_models_evict(ort_library: Path, dtype: Any) -> None:
    """The model's type is that of exact slots."""
    attributes = evicting_attributes("exact", observes=4, **HEADS)
    text = make_text(attributes, TOKENS, dtype=dtype)
    state = empty_state(attributes, 1, 64, 0, dtype)
    group, row = KernelGroup(OrtGroup(ort_library, attributes, state, dtype)), None
    row = EvictingRow(attributes)
    for past in range(0, TOKENS, 8):
        if len(row.held) > 56:
            row.evict(group, 0, np.arange(len(row.held)) < 32)
        group.step(text.call([past], [8]))
        row.set_length(past + 8)


@pytest.mark.parametrize(
    ("mode", "table", "words"),
    [
        ("exact", [0, 41], "evicted is [0, 41]"),
        ("exact", [16, 16], "evicted is [16, 16]"),
        ("slerp", [0, 36], "evicted is [0, 36]"),
        ("subspace", [0, 31, 31, 31, 31], "evicted is [0, 31, 31, 31, 31]"),
        ("subspace", [0, 16, 0, 0, 0], "evicted is [0, 16, 0, 0, 0]"),
        ("subspace", [0, 0, 16, 16, 16], "evicted is [0, 0, 16, 16, 16]"),
    ],
)
def test_a_table_that_no_policy_writes_is_refused(
    ort_library: Path, mode: str, table: list[int], words: str
) -> None:
    """Row and values are named, and nothing is read out of bounds."""
    attributes = evicting_attributes(mode)
    text = make_text(attributes, TOKENS)
    state = empty_state(attributes, 1, CAPACITY, 0)
    group = OrtGroup(ort_library, attributes, state, tables=tables_of(attributes))
    group.run(text.call([0], [40]))
    group.state["evicted"][0] = table
    with pytest.raises(Exception, match=f"row 0: .*{re.escape(words)}"):
        group.run(text.call([40], [1]))


def test_a_retained_token_that_was_evicted_is_refused(ort_library: Path) -> None:
    """Its code would be looked up outside of the row's slots; judge and kernel say the same."""
    attributes = evicting_attributes("slerp-threshold")
    text = make_text(attributes, TOKENS)
    state = empty_state(attributes, 1, CAPACITY, 8)
    reference = ReferenceGroup(attributes, copy.deepcopy(state), tables_of(attributes))
    kernel = OrtGroup(ort_library, attributes, state)
    for group, step in ((reference, reference.step), (kernel, kernel.run)):
        step(text.call([0], [60]))
        group.state["evicted"][0, -1] = 16
        group.state["retained_position"][0] = [5, *[-1] * 7]
        with pytest.raises(Exception, match="retained_position 0 is 5, a token that was evicted"):
            step(text.call([60], [1]))


def test_a_row_without_room_is_refused(ort_library: Path) -> None:
    """The capacity bounds what is left, not the text."""
    attributes = evicting_attributes("exact")
    text = make_text(attributes, TOKENS)
    group = KernelGroup(OrtGroup(ort_library, attributes, empty_state(attributes, 1, 48, 0)))
    row = EvictingRow(attributes)
    group.step(text.call([0], [48]))
    row.set_length(48)
    with pytest.raises(Exception, match="the cache holds 48 tokens"):
        group.kernel.run(text.call([48], [1]))
    row.evict(group, 0, np.arange(48) < 16)
    group.step(text.call([48], [16]))
    with pytest.raises(Exception, match="the cache holds 48 tokens"):
        group.kernel.run(text.call([64], [1]))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"evicts": 2}, "evicts is 2"),
        ({"evicts": 0, "observes": 4}, "nothing reads attention_mass"),
        ({"observes": -2}, "observes is -2"),
        ({"has_bias": 1}, "depend on positions"),
    ],
)
def test_contradictions_are_refused(ort_library: Path, given: dict[str, Any], words: str) -> None:
    """When the session is made."""
    attributes = {**evicting_attributes("exact"), **given}
    state = empty_state(attributes, 1, 16, 0)
    with pytest.raises(Exception, match=words):
        OrtGroup(ort_library, attributes, copy.deepcopy(state))
