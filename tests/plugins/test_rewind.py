"""Running a call twice, going back, and cutting a text into other calls (reference, slerp mode)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import chunks, make_attributes, make_text, poisoned_state
from tests.plugins.slerp_text import TOKENS, run_slerp
from tests.plugins.walk import (
    CAPACITY,
    POLICIES,
    SMALL,
    ReferenceGroup,
    Row,
    assert_same_reads,
    walk,
)

# M: nothing, fewer tokens than disagree, some, and more than there are.
MOST = (0, 1, 3, 6, CAPACITY)


@pytest.mark.parametrize("policy", POLICIES)
@given(past=st.integers(0, 30), new=st.integers(1, 6), most=st.sampled_from(MOST))
def test_running_a_call_twice_changes_nothing(policy: str, past: int, new: int, most: int) -> None:
    """For S <= X, the second run of a call gives the same bytes of state, and the same outputs."""
    attributes = make_attributes(**SMALL, **POLICIES[policy])
    text = make_text(attributes, TOKENS, dtype=np.float64, seed=past)
    _, state = run_slerp(attributes, text, [(0, past)] if past else [], retained=most)
    first, once = run_slerp(attributes, text, [(past, new)], state)
    second, twice = run_slerp(attributes, text, [(past, new)], once)
    np.testing.assert_array_equal(first, second)
    for name in once:
        np.testing.assert_array_equal(once[name].view(np.uint8), twice[name].view(np.uint8), name)


@pytest.mark.parametrize("exact", [np.float16, np.float32], ids=["fp16", "fp32"])
@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=50)
@given(data=st.data(), most=st.sampled_from(MOST))
def test_going_back_equals_never_having_gone(
    policy: str, exact: Any, data: st.DataObject, most: int
) -> None:
    """Whatever was dropped, up to X tokens, the rest of a text is that of a fresh run."""
    attributes = make_attributes(**SMALL, **POLICIES[policy])
    walk(
        data,
        attributes,
        lambda rows: ReferenceGroup(
            attributes, poisoned_state(attributes, rows, CAPACITY, most, exact)
        ),
        tolerance=0,
    )


@pytest.mark.parametrize("back", range(1, 7))
@pytest.mark.parametrize("policy", POLICIES)
def test_a_dissimilar_token_that_is_dropped_leaves_no_trace(policy: str, back: int) -> None:
    """Opposite layers widen the range and evict another token: going back takes both back."""
    attributes = make_attributes(**SMALL, **POLICIES[policy])
    text = make_text(attributes, TOKENS, dtype=np.float64)
    for position in range(27, 36):
        for array in (text.key, text.value):
            array[1, 0, position] = -array[0, 0, position]
    steps = list(chunks(29 + back, 29))
    _, before = run_slerp(attributes, text, steps[:1], retained=3)
    _, ahead = run_slerp(attributes, text, steps[1:], before)
    other = make_text(attributes, TOKENS, dtype=np.float64, seed=1)
    outputs = []
    for state in (before, ahead):
        out, after = run_slerp(attributes, other, [(29, 1)], state)
        outputs.append((out, {name: array[0] for name, array in after.items()}))
    np.testing.assert_array_equal(outputs[0][0], outputs[1][0])
    row = Row([(0, 29), (29, 1)], 29 + back)
    assert_same_reads(attributes, outputs[0][1], outputs[1][1], row)
    if policy == "minmax":
        assert np.nanmin(ahead["similarity_range"]) < np.nanmin(before["similarity_range"])


def test_prefill_may_be_cut_anywhere() -> None:
    """With exact slots in the model's type, codes do not depend on how the text was cut."""
    attributes = make_attributes(**SMALL, retention="threshold", retention_threshold=0.7)
    text = make_text(attributes, TOKENS, dtype=np.float64)
    _, whole = run_slerp(attributes, text, [(0, TOKENS)])
    for sizes in ((1,), (7, 7), (30,)):
        _, cut = run_slerp(attributes, text, list(chunks(TOKENS, *sizes)))
        row = Row([(0, TOKENS)], TOKENS)
        one, other = ({name: array[0] for name, array in x.items()} for x in (whole, cut))
        assert_same_reads(attributes, one, other, row)
