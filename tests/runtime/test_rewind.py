"""Taking tokens back: exact within the slack, refused beyond."""

from __future__ import annotations

import numpy as np
import pytest

from minicache.runtime.errors import SessionError
from tests.runtime.conftest import OpenTiny
from tests.runtime.session_text import (
    LENGTH,
    assert_close,
    assert_same,
    snapshot,
    text,
)
from tests.runtime.tiny_model import SLACK, VARIANTS


@pytest.mark.parametrize("variant", VARIANTS)
def test_rewind_equals_never_having_gone(open_tiny: OpenTiny, variant: str) -> None:
    session, ids, other = open_tiny(variant), text(), text(seed=1)
    fresh = open_tiny(variant)
    fresh.forward(ids[:, :40])
    for back in (1, SLACK):
        session.reset()
        session.forward(ids[:, :40])
        session.forward(other[:, :back])
        session.rewind(back)
        assert session.lengths.tolist() == [40]
        session.forward(other[:, :back])
        session.rewind([back])
        result = session.forward(ids[:, 40:50])
        fresh.reset()
        fresh.forward(ids[:, :40])
        assert_close(result, fresh.forward(ids[:, 40:50]))
        assert session.retention_stats() == fresh.retention_stats()


@pytest.mark.parametrize("policy", ["none", "threshold", "minmax", "budget"])
def test_no_policy_remembers_what_was_dropped(open_tiny: OpenTiny, policy: str) -> None:
    """Rewinds of 1 to X tokens, over and over, in ragged rows with M below the coded tokens."""
    model = {"retention": policy, "retention_gamma": 0.2, "window": 4, "ring_slots": 4 + SLACK}
    sessions = [
        open_tiny("slerp", model=model, batch_size=2, max_sequence_length=64) for _ in range(2)
    ]
    session, fresh = sessions
    ids, other = text(2), text(2, seed=1)
    for each in sessions:
        each.forward(ids[:, :38], [38, 31])
    for back in (1, SLACK, 5):
        for step in range(back):
            session.forward(other[:, step : step + 1])
        session.rewind([back, back])
    assert session.retention_stats() == fresh.retention_stats()
    for step in range(40, 46):
        result = session.forward(ids[:, step : step + 1])
        assert_close(result, fresh.forward(ids[:, step : step + 1]))
        assert session.retention_stats() == fresh.retention_stats()
    stats = fresh.retention_stats()[0]
    assert stats.capacity == (0 if policy == "none" else 16)
    assert stats.full or policy != "budget"
    if policy != "none":
        position = session.cache_tensors()["past_minicache.0.retained_position"]
        assert position.shape == (2, 16 + (SLACK if policy == "budget" else 0))
        assert session.cache_bytes == sum(x.nbytes for x in session.cache_tensors().values())


def test_rewind_beyond_the_slack_is_refused(open_tiny: OpenTiny) -> None:
    session = open_tiny("slerp", batch_size=2)
    session.forward(text(2))
    before = snapshot(session)
    with pytest.raises(SessionError, match=f"take back at most {SLACK}"):
        session.rewind([0, SLACK + 1])
    with pytest.raises(SessionError, match="it holds 60"):
        session.rewind(61)
    with pytest.raises(SessionError, match="one integer or one per row"):
        session.rewind(1.5)
    assert_same(snapshot(session), before)
    session.rewind([SLACK - 2, 0])
    # the ring was written up to 60: what was taken back counts
    with pytest.raises(SessionError, match="take back at most 2"):
        session.rewind([3, 0])
    session.rewind([LENGTH - SLACK + 2, 0])  # to nothing is always exact
    session.forward(text(2, 5), [5, 0])
    session.rewind([4, 0])
    assert session.lengths.tolist() == [1, LENGTH]


def test_exact_rewinds_without_bound(open_tiny: OpenTiny) -> None:
    session, ids = open_tiny("exact"), text()
    whole = session.forward(ids)
    session.rewind(LENGTH - 1)
    assert_close(session.forward(ids[:, 1:]), whole[:, 1:])


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_lies_beyond_the_slack_is_read_again(open_tiny: OpenTiny, variant: str) -> None:
    """By 1, by the slack, and by more: each equals a run that never went so far."""
    session, ids = open_tiny(variant, batch_size=2), text(2, 80)
    for back in (1, SLACK, SLACK + 1, 50):
        session.reset()
        session.prefill(ids)
        session.rewind([back, 0], refill=True)
        assert session.lengths.tolist() == [80 - back, 80]
        fresh = open_tiny(variant, batch_size=2)
        fresh.prefill(ids, [80 - back if back > SLACK else 80, 80])
        if back <= SLACK:
            fresh.rewind([back, 0])
        new = text(2, 9, seed=3)
        assert_close(session.forward(new), fresh.forward(new))
        held = session.token_ids(0)
        assert held is not None
        assert held.tolist() == [*ids[0, : 80 - back].tolist(), *new[0].tolist()]


def test_tokens_that_nobody_knows_cannot_be_read_again(open_tiny: OpenTiny) -> None:
    session = open_tiny("slerp")
    session.forward(text())
    session._restart(session.lengths)
    before = snapshot(session)
    with pytest.raises(SessionError, match="its tokens are not known"):
        session.rewind(SLACK + 1, refill=True)
    assert session.token_ids() is None
    assert_same(snapshot(session), before)


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_are_driven_apart(open_tiny: OpenTiny, variant: str) -> None:
    """Calls on some rows equal calls on a session of their own, and leave the others alone."""
    session, alone = open_tiny(variant, batch_size=4), open_tiny(variant, batch_size=2)
    ids = text(4)
    session.forward(ids[:, :20])
    alone.forward(ids[1:3, :20])
    middle = session.rows(1, 3)
    outside = {name: array[[0, 3]].copy() for name, array in session.cache_tensors().items()}
    for rows in (middle, alone):
        rows.forward(ids[1:3, 20:50], [30, 7])
        rows.rewind([4, 2])
    assert_close(middle.forward(ids[1:3, 50:55]), alone.forward(ids[1:3, 50:55]))
    assert session.lengths.tolist() == [20, 51, 30, 20]
    assert middle.lengths.tolist() == alone.lengths.tolist() == [51, 30]
    for name, array in session.cache_tensors().items():
        np.testing.assert_array_equal(array[[0, 3]], outside[name])
    middle.reset(release=True)
    assert session.lengths.tolist() == [20, 0, 0, 20]
    assert_close(session.rows(2).prefill(ids[2]), open_tiny(variant).prefill(ids[2]))
    with pytest.raises(SessionError, match=r"end - 1 is 4; possible here: 2\.\.3"):
        session.rows(2, 5)
    with pytest.raises(SessionError, match=r"first is -1; possible here: 0\.\.3"):
        session.rows(-1)
