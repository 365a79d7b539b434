"""Taking tokens back: exact within the slack, refused beyond."""

from __future__ import annotations

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
