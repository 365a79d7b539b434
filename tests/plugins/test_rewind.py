"""Running a call twice, going back, and cutting a text into other calls (reference, slerp mode)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import assert_close, chunks, make_attributes, make_text
from tests.plugins.slerp_text import SMALL, TOKENS, State, run_slerp


def same_state(attributes: dict[str, Any], a: State, b: State, total: int) -> None:
    """Whether two states read the same at ``total`` tokens: slots that nothing reads may differ."""
    coded = slice(attributes["sinks"], max(attributes["sinks"], total - attributes["window"]))
    for name in a:
        if name.endswith("magnitude"):
            np.testing.assert_array_equal(a[name][:, :, coded], b[name][:, :, coded], name)
            signs = np.signbit(a[name][:, :, coded]), np.signbit(b[name][:, :, coded])
            np.testing.assert_array_equal(*signs, name)
        elif name.endswith("code") and attributes["code_layout"] == "row":
            np.testing.assert_array_equal(a[name][:, :, coded], b[name][:, :, coded], name)
    if "retained_position" in a:
        assert set(a["retained_position"].ravel()) == set(b["retained_position"].ravel())


POLICIES = ("none", "threshold", "minmax", "budget")


@pytest.mark.parametrize("policy", POLICIES)
@given(past=st.integers(0, 30), new=st.integers(1, 6))
def test_running_a_call_twice_changes_nothing(policy: str, past: int, new: int) -> None:
    """For S <= X, the second run of a call gives the same bytes of state, and the same outputs.

    Only ``budget`` may have overwritten a token in the side buffer: its code is read from then on.
    """
    attributes = make_attributes(**SMALL, retention=policy, retention_threshold=0.7)
    text = make_text(attributes, TOKENS, dtype=np.float64, seed=past)
    _, state = run_slerp(attributes, text, [(0, past)] if past else [])
    first, once = run_slerp(attributes, text, [(past, new)], state)
    second, twice = run_slerp(attributes, text, [(past, new)], once)
    if policy != "budget":
        np.testing.assert_array_equal(first, second)
    for name in once:
        np.testing.assert_array_equal(once[name].view(np.uint8), twice[name].view(np.uint8), name)


@pytest.mark.parametrize("policy", ["none", "threshold"])
@given(length=st.integers(1, 30), back=st.integers(0, 6))
def test_going_back_equals_never_having_gone(policy: str, length: int, back: int) -> None:
    """Rewinding by up to X tokens and going on with another text is a fresh run of that text."""
    attributes = make_attributes(**SMALL, retention=policy, retention_threshold=0.7)
    back = min(back, length)
    text, other = (make_text(attributes, TOKENS, dtype=np.float64, seed=s) for s in (1, 2))
    for name in ("query", "key", "value"):
        getattr(other, name)[:, :, : length - back] = getattr(text, name)[:, :, : length - back]
    later = [(length - back, 4), (length - back + 4, 1)]
    _, state = run_slerp(attributes, text, [(0, length)])
    rewound, state = run_slerp(attributes, other, later, state)
    _, fresh_state = run_slerp(attributes, other, [(0, length - back)] if length > back else [])
    fresh, fresh_state = run_slerp(attributes, other, later, fresh_state)
    assert_close(rewound[:, length - back : length - back + 5], fresh[:, length - back :][:, :5], 0)
    same_state(attributes, state, fresh_state, length - back + 5)


@pytest.mark.parametrize("policy", ["minmax", "budget"])
def test_going_back_with_memory(policy: str) -> None:
    """The range of minmax remembers dropped tokens; what budget evicted for them stays a code."""
    attributes = make_attributes(**SMALL, retention=policy, retention_gamma=0.5)
    text = make_text(attributes, TOKENS, dtype=np.float64)
    text.key[1, 0, 24], text.value[1, 0, 24] = -text.key[0, 0, 24], -text.value[0, 0, 24]
    capacity = 3 if policy == "budget" else TOKENS
    _, before = run_slerp(attributes, text, [(0, 28)], retained=capacity)
    _, ahead = run_slerp(attributes, text, [(28, 4)], before)
    _, back = run_slerp(attributes, text, [(27, 1)], ahead)
    fresh, gone, held = (set(s["retained_position"][0]) - {-1} for s in (before, ahead, back))
    assert 24 in gone
    assert 24 not in held
    if policy == "minmax":
        assert back["similarity_range"][0, 0] < before["similarity_range"][0, 0]
    else:
        assert len(fresh - gone) > 0
        assert not (fresh - gone) & held


def test_prefill_may_be_cut_anywhere() -> None:
    """With exact slots in the model's type, codes do not depend on how the text was cut."""
    attributes = make_attributes(**SMALL, retention="threshold", retention_threshold=0.7)
    text = make_text(attributes, TOKENS, dtype=np.float64)
    _, whole = run_slerp(attributes, text, [(0, TOKENS)])
    for sizes in ((1,), (7, 7), (30,)):
        _, cut = run_slerp(attributes, text, list(chunks(TOKENS, *sizes)))
        same_state(attributes, whole, cut, TOKENS)
