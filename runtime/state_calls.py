"""The calls that take a row's state out of a cache, and put it into one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from minicache.runtime import checks
from minicache.runtime.row_calls import RowCalls
from minicache.runtime.row_state import RowState, read_row, write_row
from minicache.runtime.state_file import read_state, write_state


class StateCalls(RowCalls):
    """Prefixes: what rows hold, to be kept, copied and taken up again."""

    def snapshot(self, row: int = 0) -> RowState:
        """Copies what a row holds: as many bytes as its tokens take up, whatever the capacity.

        Raises:
            SessionError: no such row.
        """
        session, place = self.session, self._place("row", row)
        with session._running() as model:
            model.pull(slice(place, place + 1))
            length = int(session._lengths[place])
            return RowState(
                session.model_digest,
                length,
                max(session._rewind.furthest(place), length),
                session._tokens.read(place, length),
                read_row(session._cache, place, length, session.manifest.window),
            )

    def restore(self, state: RowState, row: int = 0) -> None:
        """Puts a state into a row, in place of what it holds; the row may be of any session.

        Args:
            state: as ``snapshot`` or a file gave it.
            row: where to.

        Raises:
            StateFileError: it is another model's, or does not fit; nothing has changed.
            CapacityError: it holds more tokens than a row does; nothing has changed.
            SessionError: no such row.
        """
        session, place = self.session, self._place("row", row)
        fitting = session.check_state(state)
        with session._running() as model:
            # On a GPU, slots that the state does not use go there as the host has them: never read.
            write_row(session._cache, place, fitting)
            model.push(slice(place, place + 1))
            session._lengths[place] = state.length
            session._rewind.replace(place, state.furthest)
            session._tokens.replace(place, state.token_ids)

    def save(self, path: str | os.PathLike[str], row: int = 0) -> None:
        """Saves a row as a safetensors file, which appears whole or not at all.

        The file holds the tokens' ids, where they are known, beside the cache.

        Args:
            path: replaced if it is there.
            row: which.

        Raises:
            OutputError: the disk refuses.
            SessionError: no such row.
        """
        write_state(self.snapshot(row), Path(path))

    def load(self, path: str | os.PathLike[str], row: int = 0) -> None:
        """Puts a saved row into a row, in place of what it holds.

        The session may have another capacity and other rows than the one that saved it.

        Args:
            path: what ``save`` wrote.
            row: where to.

        Raises:
            StateFileError: damaged, of another version, or another model's; nothing has changed.
            CapacityError: it holds more tokens than a row does; nothing has changed.
            SessionError: no such row.
        """
        self._place("row", row)
        self.restore(read_state(Path(path)), row)

    def fork(self, source_row: int, rows: Sequence[int]) -> None:
        """Copies what a row holds to other rows, for several continuations of one beginning.

        Args:
            source_row: which to copy.
            rows: where to, in place of what they hold.

        Raises:
            SessionError: no such row; nothing has changed.
        """
        self._place("source_row", source_row)
        for row in rows:
            self._place("a row of rows", row)
        state = self.snapshot(source_row)
        for row in rows:
            if row != source_row:
                self.restore(state, row)

    def _place(self, name: str, row: int) -> int:
        return int(self._rows.start) + checks.number_below(name, row, self.batch_size)
