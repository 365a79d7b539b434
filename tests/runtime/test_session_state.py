"""The state of a session stays in place, can be looked at, and belongs to one thread."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from minicache.runtime.errors import SessionError
from tests.runtime.conftest import OpenTiny
from tests.runtime.session_text import (
    assert_close,
    text,
)
from tests.runtime.tiny_model import MAX_LENGTH, SINKS, VARIANTS, WINDOW


@pytest.mark.parametrize("variant", VARIANTS)
def test_state_is_updated_in_place(open_tiny: OpenTiny, variant: str) -> None:
    session = open_tiny(variant)
    session.forward(text())
    views = session.cache_tensors()
    for name, (buffer, output) in session.state_pointers().items():
        assert buffer == output == views[name].ctypes.data, name
        assert buffer % 64 == 0 or views[name].size == 0, name
        assert not views[name].flags.writeable
    exact = next(array for name, array in views.items() if name.endswith("exact_key"))
    before = exact.copy()
    session.forward(text(length=1))
    assert (exact != before).any(), "a view shows the next call's writes"
    assert session.cache_bytes == sum(array.nbytes for array in views.values())


def test_retention_counts_add_up(open_tiny: OpenTiny) -> None:
    session = open_tiny("slerp", batch_size=2)
    assert [stats.total for stats in session.retention_stats()] == [0]
    session.forward(text(2), [60, 5])
    (stats,) = session.retention_stats()
    assert stats.total == 60 - WINDOW - SINKS
    assert stats.n_retained + stats.n_merged == stats.total
    assert 0 < stats.n_retained < stats.total
    assert stats.capacity == MAX_LENGTH // 4 and not stats.full
    positions = session.cache_tensors()["past_minicache.0.retained_position"]
    assert stats.n_retained == (positions >= 0).sum()


def test_a_full_side_buffer_says_so(open_tiny: OpenTiny) -> None:
    session = open_tiny("slerp", {"retention_threshold": 2.0}, max_sequence_length=80)
    session.forward(text())
    (stats,) = session.retention_stats()
    assert (stats.n_retained, stats.capacity, stats.full) == (20, 20, True)


def test_two_sessions_do_not_touch_each_other(open_tiny: OpenTiny) -> None:
    first, second, ids = open_tiny(), open_tiny(), text()
    expected = first.forward(ids)
    first.reset()
    a = first.forward(ids[:, :30])
    second.forward(text(seed=3))
    b = first.forward(ids[:, 30:])
    assert_close(np.concatenate([a, b], axis=1), expected)


def test_a_second_thread_is_refused(open_tiny: OpenTiny) -> None:
    session = open_tiny()
    raised: list[BaseException] = []

    def forward() -> None:
        try:
            session.forward([[1]])
        except SessionError as error:
            raised.append(error)

    with session._running():
        thread = threading.Thread(target=forward)
        thread.start()
        thread.join()
    assert "another thread" in str(raised[0])
    session.forward([[1]])


def test_a_closed_session_says_so(open_tiny: OpenTiny) -> None:
    session = open_tiny()
    with session:
        session.forward([[1]])
    for call in (session.reset, session.cache_tensors, lambda: session.forward([[1]])):
        with pytest.raises(SessionError, match="closed"):
            call()
