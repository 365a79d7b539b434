"""Some of a session's rows, to be driven on their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minicache.runtime.state_calls import StateCalls
from minicache.runtime.text_calls import TextCalls

if TYPE_CHECKING:
    from minicache.runtime.session import Session


class Rows(TextCalls, StateCalls):
    """Contiguous rows of a session, as ``Session.rows`` gives them.

    They share the session's model and cache; a call computes these rows and no others. Arrays have
    one row for each of them, counted from 0.

    Args:
        session: whose rows.
        first: number of the first one.
        end: one more than the number of the last one.
    """

    def __init__(self, session: Session, first: int, end: int) -> None:
        self._session, self._range = session, slice(first, end)

    @property
    def session(self) -> Session:
        """The session whose rows these are."""
        return self._session

    @property
    def _rows(self) -> slice:
        return self._range
