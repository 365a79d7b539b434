"""Continuous batching: requests come and go, each on a row of one session.

Use it as::

    batch = Batch(session)
    first = batch.add("Once upon a time", 40)
    second = batch.add("The cache of a decoder", 20, temperature=0.7)
    while batch.active:
        for request, token in batch.step():
            print(request, token.text, token.finish_reason)
"""

from __future__ import annotations

import math
import os
import threading
from typing import TYPE_CHECKING

import numpy as np

from minicache.runtime import checks
from minicache.runtime.batch_request import BatchRequest, BatchToken, prefix_state, take_up
from minicache.runtime.continuation import Continuation
from minicache.runtime.errors import BatchFullError, SessionError
from minicache.runtime.generate_options import GenerateOptions, Prompt, continuation
from minicache.runtime.generated_token import GeneratedToken
from minicache.runtime.row_calls import PREFILL_CHUNK
from minicache.runtime.row_state import RowState

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Unpack

    from minicache.runtime.session import Session


class Batch:
    """Runs requests side by side; each ends on its own, and its row is free for the next one.

    A call of the model costs what its rows cost, so that a prompt is read on its row alone, and a
    decode step runs on the smallest range of rows that covers those that decode. Where the model
    only takes all rows (``Model.needs_all_rows``), the others idle in the call.

    Methods may be called from several threads; one runs at a time. While a batch is used, nothing
    else may use its session.

    Args:
        session: whose rows; they are emptied.
        chunk: prompt tokens per call: the longest that decoding rows wait for a new prompt.

    Raises:
        SessionError: ``chunk`` is no positive number, or the session is closed.
    """

    def __init__(self, session: Session, *, chunk: int = PREFILL_CHUNK) -> None:
        checks.whole_number("chunk", chunk)
        longest = chunk if session.longest_call is None else session.longest_call
        self._session, self._chunk = session, min(int(chunk), longest)
        self._next = 0  # the number that the next request gets
        self._requests: dict[int, BatchRequest] = {}
        self._free = list(range(session.batch_size))  # ascending
        self._decodes_next = False
        self._lock = threading.RLock()
        self._logits: npt.NDArray[np.float32] = np.empty((0, 1, 0), np.float32)
        session.reset(release=True)

    @property
    def session(self) -> Session:
        """The session whose rows the requests run on."""
        return self._session

    @property
    def free_rows(self) -> int:
        """Rows without a request."""
        return len(self._free)

    @property
    def active(self) -> tuple[int, ...]:
        """Numbers of the requests that have not ended, oldest first."""
        return tuple(self._requests)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the state that the requests' tokens take up now."""
        with self._lock:
            return sum(self._session.row_bytes(each.read) for each in self._requests.values())

    def add(
        self,
        prompt: Prompt,
        max_new_tokens: int,
        *,
        prefix: RowState | str | os.PathLike[str] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> int:
        """Takes a free row for a request; nothing is computed before ``step``.

        Args:
            prompt: a text; token ids; or, with ``chat``, messages with ``role`` and ``content``.
            max_new_tokens: at most so many.
            prefix: a beginning of the prompt that was computed before: what ``Session.snapshot``
                gave, or the path of a file that ``Session.save`` wrote. Its tokens are not computed
                again.
            options: see ``GenerateOptions``; the default is greedy.

        Returns:
            The request's number: 0 for the first one, then counting up.

        Raises:
            BatchFullError: no row is free; nothing else was looked at.
            SessionError: an empty prompt, an option out of range, or a prompt that does not begin
                with its prefix.
            CapacityError: the prompt does not fit into a row.
            PackageError: a tokenizer or chat template is needed and missing.
            StateFileError: the prefix is damaged, or another model's.
        """
        with self._lock:
            self._check_free()
            text = continuation(self._session, prompt, max_new_tokens, options)
            return self.resume(text, prefix)

    def resume(
        self, text: Continuation, prefix: RowState | str | os.PathLike[str] | None = None
    ) -> int:
        """As ``add``, for a request that was checked before; see ``generate_options.continuation``.

        Raises:
            MiniCacheError: as ``add``.
        """
        with self._lock:
            self._check_free()
            state = None
            if prefix is not None:
                state = prefix_state(self._session, prefix, text.tokens)
            number, self._next = self._next, self._next + 1
            self._requests[number] = request = BatchRequest(self._free.pop(0), text)
            if state is not None:
                rows = self._session.rows(request.row)
                request.read = take_up(rows, state, text.prompt_tokens)
            return number

    def _check_free(self) -> None:
        if not self._free:
            raise BatchFullError(
                f"all {self._session.batch_size} rows are taken; step() until a request ends, "
                "remove() one, or open the session with a larger batch_size"
            )

    def step(self) -> list[BatchToken]:
        """Calls the model once.

        Either a chunk of the oldest prompt that is not read to the end, or one decode step of all
        rows whose prompt is; where there are both, they take turns.

        Returns:
            The new tokens, at most one per request: none while a long prompt is being read, and
            none when there is nothing to do (``active`` tells).

        Raises:
            SessionError: the session was used for something else, or the model failed; no request
                has ended.
        """
        with self._lock:
            waiting = [number for number, each in self._requests.items() if each.is_waiting]
            decoding = [number for number, each in self._requests.items() if not each.is_waiting]
            if waiting and not (decoding and self._decodes_next):
                self._decodes_next = True
                return self._prefill(waiting[0])
            self._decodes_next = False
            return self._decode(decoding) if decoding else []

    def remove(self, request: int) -> None:
        """Ends a request: its row is free at once, and its memory goes back to the system.

        Args:
            request: number that ``add`` gave; nothing happens if it has ended already.

        Raises:
            SessionError: no such number.
        """
        with self._lock:
            checks.number_below("request", request, self._next)
            if request in self._requests:
                self._end(request)

    def _end(self, number: int) -> None:
        row = self._requests.pop(number).row
        self._free = sorted([*self._free, row])
        self._session.rows(row).reset(release=True)

    def _prefill(self, number: int) -> list[BatchToken]:
        request = self._requests[number]
        rows = self._session.rows(request.row)
        self._check_unused(number)
        end = min(request.read + self._chunk, request.text.prompt_tokens)
        cuts = rows._prompt_cuts(np.array([request.text.prompt_tokens]))
        end = min([end, *(cut for cut in cuts if cut > request.read)])
        part = [request.text.tokens[request.read : end]]
        is_last = end == request.text.prompt_tokens
        left = np.array([request.text.prompt_tokens - request.read])
        count = np.array([end - request.read])
        logits = rows._read_prompt(part, count, left, "last" if is_last else None)
        if request.text.progress is not None:
            request.text.progress(end - request.read)
        request.read = end
        return [self._take(number, logits[0, 0])] if is_last else []

    def _decode(self, numbers: list[int]) -> list[BatchToken]:
        for number in numbers:
            self._check_unused(number)
        requests = [self._requests[number] for number in numbers]
        first = min(request.row for request in requests)
        rows = self._session.rows(first, 1 + max(request.row for request in requests))
        ids, new = np.zeros((rows.batch_size, 1), np.int64), np.zeros(rows.batch_size, np.int32)
        for request in requests:
            ids[request.row - first], new[request.row - first] = request.text.tokens[-1], 1
        logits = rows.forward(ids, new, logits="last", out=self._room(rows.batch_size))
        tokens = []
        for number, request in zip(numbers, requests, strict=True):
            request.read += 1  # one by one: an interrupt leaves no token that is counted and lost
            tokens.append(self._take(number, logits[request.row - first, 0]))
        return tokens

    def _room(self, rows: int) -> npt.NDArray[np.float32]:
        """Where the logits of a decode step go: the same memory every time."""
        shape = rows, 1, self._session.manifest.vocab_size
        if self._logits.shape != shape:
            self._logits = np.empty(shape, np.float32)
        return self._logits

    def _take(self, number: int, logits: npt.NDArray[np.float32]) -> BatchToken:
        request = self._requests[number]
        try:
            token = request.text.take(logits, full=request.read == self._session.capacity)
        except SessionError:  # one text's misfortune must not cost the others their tokens
            token = GeneratedToken(-1, "", math.nan, "error")
        if token.finish_reason is not None:
            self._end(number)
        return BatchToken(number, token)

    def _check_unused(self, number: int) -> None:
        request = self._requests[number]
        held = int(self._session.lengths[request.row])
        if held != request.read:
            raise SessionError(
                f"row {request.row} holds {held} tokens, request {number} put {request.read} "
                "there: the session was used for something else; give a batch a session of its own"
            )
