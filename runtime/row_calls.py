"""The calls that append to rows of a cache, read them and take tokens back.

Letters: B rows of the call, S new tokens, K positions with logits, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from minicache.runtime import checks, prefill, rewind
from minicache.runtime.errors import SessionError
from minicache.runtime.row_run import run_rows

if TYPE_CHECKING:
    from minicache.runtime.session import Session

Logits = Literal["all", "last"]
PREFILL_CHUNK = 512


class RowCalls(ABC):
    """What a ``Session`` does with all of its rows, and ``Rows`` with some of them."""

    @property
    @abstractmethod
    def session(self) -> Session:
        """The session whose rows these are."""

    @property
    @abstractmethod
    def _rows(self) -> slice:
        """Their numbers in the session."""

    @property
    def batch_size(self) -> int:
        """Rows B."""
        return int(self._rows.stop - self._rows.start)

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """Tokens in the cache per row, int32 [B]; a copy."""
        return self.session._lengths[self._rows].copy()

    def token_ids(self, row: int = 0) -> npt.NDArray[np.int32] | None:
        """The tokens that a row holds, as they were given; None where they are not known.

        Raises:
            SessionError: no such row.
        """
        place = self._rows.start + checks.number_below("row", row, self.batch_size)
        return self.session._tokens.read(place, int(self.session._lengths[place]))

    def forward(
        self,
        input_ids: npt.ArrayLike,
        lengths: npt.ArrayLike | None = None,
        logits: Logits | None = "all",
        out: npt.NDArray[np.float32] | None = None,
    ) -> npt.NDArray[np.float32]:
        """Appends tokens to the cache and returns their logits.

        Args:
            input_ids: integers [B, S]; shorter rows are padded on the right with anything.
            lengths: [B] valid new tokens per row, 0..S; None: S for every row.
            logits: ``all`` new tokens, the ``last`` valid one of each row, or None to skip them.
            out: array to fill instead of a new one; of the result's shape, C-contiguous.

        Returns:
            float32 [B, S, V] (``last``: [B, 1, V]; None: [B, 0, V]), the caller's to keep; padding
            and rows without new tokens are zero.

        Raises:
            SessionError: wrong shape, type or range; more tokens than an engine takes in one call;
                closed; or running in another thread.
            CapacityError: a row would exceed the capacity; nothing has changed.
        """
        if logits not in ("all", "last", None):
            raise SessionError(f'logits is {logits!r}; give "all", "last" or None')
        session, rows, vocabulary = self.session, self._rows, self.session.manifest.vocab_size
        ids, new = checks.token_ids(input_ids, lengths, self.batch_size, vocabulary)
        # The graph computes at least one position per row, also when nobody wants it.
        positions = np.maximum(new - 1, 0).astype(np.int64)[:, None]
        if logits == "all":
            positions = np.tile(np.arange(ids.shape[1], dtype=np.int64), (self.batch_size, 1))
        shape = (*positions.shape, vocabulary)
        if out is not None:
            checks.output_array(out, shape)
        with session._running() as model:
            past = session._lengths[rows].copy()
            checks.capacity(past, new, session.capacity, session.manifest, rows.start)
            if session._evictor is not None:
                session._evictor.make_room(model, rows, past, new)
            total = past + new
            control: dict[str, npt.NDArray[Any]] = {
                "input_ids": ids,
                "past_lengths": past,
                "total_lengths": total,
                "logit_positions": positions,
            }
            result = None
            if logits is not None:
                result = np.empty(shape, np.float32) if out is None else out
            whole = session.manifest.fixed_batch > 0 or model.needs_all_rows(ids.shape[1])
            lengths_of_all = session._lengths if whole else None
            run_rows(model, control, result, shape, rows.start, lengths_of_all)
            session._lengths[rows] = total
            session._rewind.advance(rows, total)
            session._tokens.append(rows.start, past, ids, new)
        if result is None:
            return np.empty((self.batch_size, 0, vocabulary), np.float32)
        for row in np.flatnonzero(new < ids.shape[1]):
            result[row, new[row] if logits == "all" else min(int(new[row]), 1) :] = 0
        return result

    def prefill(
        self,
        input_ids: npt.ArrayLike,
        lengths: npt.ArrayLike | None = None,
        *,
        chunk: int = PREFILL_CHUNK,
        progress: Callable[[int], None] | None = None,
    ) -> npt.NDArray[np.float32]:
        """Appends a long text in chunks; tokens of one chunk see each other in full precision.

        Args:
            input_ids: integers [B, S], or [S] for one row.
            lengths: [B] valid tokens per row; None: S for every row.
            chunk: tokens per call; bounds the memory of activations. A TensorRT engine may bound
                it further.
            progress: called with the number of new positions after each chunk.

        Returns:
            float32 [B, V]: the logits of each row's last token; zero for rows without tokens.

        Raises:
            SessionError: as ``forward``; nothing has changed.
            CapacityError: likewise.
        """
        checks.whole_number("chunk", chunk)
        session = self.session
        given = np.asarray(input_ids)
        given = given[None] if given.ndim == 1 and self.batch_size == 1 else given
        ids, new = checks.token_ids(given, lengths, self.batch_size, session.manifest.vocab_size)
        checks.capacity(self.lengths, new, session.capacity, session.manifest, self._rows.start)
        longest = chunk if session.longest_call is None else session.longest_call
        return prefill.prefill(self, ids, new, min(chunk, longest), progress)

    def _prompt_cuts(self, lengths: npt.NDArray[np.integer]) -> set[int]:
        """Places in prompts of ``lengths`` [B] tokens at which a call must end."""
        evictor = self.session._evictor
        return set() if evictor is None else evictor.cuts(lengths)

    def _read_prompt(
        self,
        input_ids: npt.ArrayLike,
        lengths: npt.NDArray[np.integer],
        left: npt.NDArray[np.integer],
        logits: Logits | None,
    ) -> npt.NDArray[np.float32]:
        """Appends a part of a prompt, as ``forward``; at its end an eviction policy may choose.

        Args:
            input_ids: integers [B, S].
            lengths: [B] valid tokens per row.
            left: [B] tokens of the prompts that are not read yet, those of this call included.
            logits: as ``forward`` takes it.
        """
        session, rows = self.session, self._rows
        if session._evictor is None:
            return self.forward(input_ids, lengths, logits)
        with session._running() as model:
            session._evictor.before_part(model, rows, lengths, left)
        result = self.forward(input_ids, lengths, logits)
        with session._running() as model:
            session._evictor.after_part(model, rows, lengths, left, session._lengths[rows])
        return result

    def reset(self, *, release: bool = False) -> None:
        """Empties the rows.

        Args:
            release: give their memory back to the system as well; on a GPU it is kept.
        """
        session, rows = self.session, self._rows
        with session._running() as model:
            if release:
                model.release(rows)
            session._cache.clear(rows)
            model.push(rows, session._cache.marks)
            session._lengths[rows] = 0
            session._rewind.clear(rows)
            session._tokens.clear(rows)

    def rewind(self, count: npt.ArrayLike, *, refill: bool = False) -> None:
        """Takes back the last tokens, as if they had never been given.

        Exact within the export's rewind slack, counted from the longest the row has been; and
        without bound where every token keeps its own slot (``exact`` mode without windows). With
        ``minmax`` retention, tokens that came in one call with dropped ones stay retained or not as
        that call decided.

        Args:
            count: tokens to drop, one number or one per row [B].
            refill: read what is left of rows that go further back again, as ``prefill`` does: as
                exact, at the price of computing it once more.

        Raises:
            SessionError: more than the row holds; or further back than the slack, without
                ``refill`` or where the row's tokens are not known. Nothing has changed.
        """
        session, rows = self.session, self._rows
        again: dict[int, npt.NDArray[np.int32]] = {}
        with session._running() as model:
            lengths = session._lengths[rows]
            drop = rewind.dropped(rows, lengths, count)
            if refill:
                beyond = session._rewind.beyond(rows, lengths, drop)
                for place in np.flatnonzero(beyond).tolist():
                    again[place] = self._known_tokens(place, int(lengths[place] - drop[place]))
                    drop[place] = 0
            session._lengths[rows] = left = session._rewind.take_back(rows, lengths, drop)
            for row in (rows.start + np.flatnonzero((left == 0) & (drop > 0))).tolist():
                empty = slice(row, row + 1)
                session._cache.clear(empty)  # what was evicted is gone with the rest
                model.push(empty, session._cache.marks)
        for place, ids in again.items():
            row = session.rows(rows.start + place)
            row.reset()
            row.prefill(ids)

    def _known_tokens(self, place: int, length: int) -> npt.NDArray[np.int32]:
        row = self._rows.start + place
        ids = self.session._tokens.read(row, length)
        if ids is None:
            raise SessionError(
                f"row {row} cannot be read again: its tokens are not known, as it was filled from "
                "elsewhere; reset() and prefill() it"
            )
        return ids
