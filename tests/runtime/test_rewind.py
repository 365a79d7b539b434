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
