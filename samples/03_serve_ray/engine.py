"""Continuous batching behind an event loop: one worker thread owns the session and its batch.

Requests come from the event loop (``submit``) and wait in a bounded queue. The oldest gets a row of
the batch when one is free and the budget of KV bytes holds all that it may grow to; so nothing that
was admitted ever runs out of memory. Its tokens go back to the event loop as the model makes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from meters import Meters
from sizes import EngineOptions, context_within
from ticket import Ended, Failed, Item, Job, Part, Refused, Ticket

from minicache.runtime import Batch, BatchToken, Session
from minicache.runtime.errors import MiniCacheError, SessionError

STALL_SECONDS = 300.0  # of one step: no step of a model that fits a replica takes as long
GAUGE_SECONDS = 0.5  # between two looks at the bytes in use


class QueueFullError(Exception):
    """All rows are taken and the queue is full."""


class EngineDownError(Exception):
    """The engine has failed or was closed; only a new one helps."""


class Engine:
    """Runs an exported folder for many requests at once.

    Args:
        folder: what ``minicache-export`` wrote.
        options: sizes.
        name: of the model; None: the folder's.

    Attributes:
        name: that requests give.
        session: for its tokenizer and manifest; only the worker runs it.
        context: tokens of a request, prompt and answer.
        meters: counts, for metrics.

    Raises:
        MiniCacheError: as ``Session``.
    """

    def __init__(
        self, folder: str | Path, options: EngineOptions | None = None, name: str | None = None
    ) -> None:
        options = EngineOptions() if options is None else options
        self.session = Session(
            folder,
            batch_size=options.rows,
            max_sequence_length=options.context,
            threads=options.threads,
            overcommit=options.kv_bytes is not None,  # admission goes by bytes then
        )
        self.options, self.name = options, name or self.session.folder.name
        self.context = context_within(self.session, options.kv_bytes)
        if self.session.has_tokenizer:
            self.session.tokenizer  # noqa: B018 - now, not within the first request
        self._batch = Batch(self.session, chunk=options.chunk)
        full = options.rows * self.session.row_bytes(self.session.capacity)
        self._budget = full if options.kv_bytes is None else options.kv_bytes
        self._gauged = -GAUGE_SECONDS
        self._reserved = 0  # bytes that the running requests may grow to
        self.meters = Meters(self._budget, options.rows, options.waiting)
        self._changed = threading.Condition()
        # What follows belongs to the condition's lock.
        self._waiting: deque[Part] = deque()
        self._dropped: list[Part] = []
        self._running: dict[int, Part] = {}
        self._down: str | None = None
        self._step_began: float | None = None
        self._thread = threading.Thread(target=self._work, name="minicache-engine", daemon=True)
        self._thread.start()

    def submit(self, jobs: Sequence[Job]) -> Ticket:
        """Queues the jobs of one request, all or none; called in the event loop.

        Raises:
            QueueFullError: no room for all of them.
            EngineDownError: the engine has failed or was closed.
        """
        ticket = Ticket(len(jobs), asyncio.get_running_loop(), self._cancel)
        parts = [Part(ticket, index, job) for index, job in enumerate(jobs)]
        with self._changed:
            if self._down is not None:
                raise EngineDownError(self._down)
            free = self.session.batch_size - len(self._running)
            if len(self._waiting) + len(parts) > free + self.options.waiting:
                self.meters.finished("queue_full")
                raise QueueFullError(
                    f"{len(self._running)} requests are running and {len(self._waiting)} waiting, "
                    f"at most {self.options.waiting} may wait"
                )
            self._waiting.extend(parts)
            self.meters.waiting = len(self._waiting)
            self._changed.notify()
        return ticket

    def check(self) -> None:
        """Does nothing while all is well.

        Raises:
            EngineDownError: the engine has failed, was closed, or hangs in a step.
        """
        if self._down is not None:
            raise EngineDownError(self._down)
        began = self._step_began
        if began is not None and time.monotonic() - began > STALL_SECONDS:
            raise EngineDownError(f"a step of the model takes longer than {STALL_SECONDS:.0f} s")

    def close(self) -> None:
        """Ends the worker after its step; requests that are not done fail."""
        with self._changed:
            self._down = self._down or "the server is shutting down"
            self._changed.notify()
        self._thread.join()
        with contextlib.suppress(SessionError):  # closed already
            self.session.close()

    def _cancel(self, ticket: Ticket) -> None:
        with self._changed:
            ticket.cancelled = True
            for part in [part for part in self._waiting if part.ticket is ticket]:
                self._waiting.remove(part)
                self.meters.finished("cancelled")
            self.meters.waiting = len(self._waiting)
            self._dropped += [part for part in self._running.values() if part.ticket is ticket]
            self._changed.notify()

    def _work(self) -> None:
        try:
            while self._down is None:
                with self._changed:
                    self._changed.wait_for(self._has_work)
                self._drop()
                self._admit()
                if self._running and self._down is None:
                    self._step()
            reason = self._down
        except BaseException as error:  # also what no one thought of: a silent thread hangs clients
            reason = f"the model failed: {error}"
            if not isinstance(error, MiniCacheError):
                reason = f"the engine failed: {type(error).__name__}: {error}"
        self._fail_all(reason)

    def _has_work(self) -> bool:
        return bool(self._waiting or self._dropped or self._running or self._down)

    def _drop(self) -> None:
        with self._changed:
            dropped, self._dropped = self._dropped, []
        for part in dropped:
            if self._running.get(part.request) is part:  # it may have ended in the meantime
                self._batch.remove(part.request)
                self._release(part, "cancelled")

    def _admit(self) -> None:
        while (part := self._next()) is not None:
            job = part.job
            try:
                part.request = self._batch.add(job.prompt, job.max_new_tokens, **job.options)
            except MiniCacheError as error:  # of this request alone
                self.meters.finished("refused")
                self._gauge()
                part.ticket.deliver([(part.index, Refused(str(error)))])
                continue
            except BaseException:
                self._waiting.appendleft(part)  # it fails with all others
                raise
            with self._changed:
                self._running[part.request] = part
                if part.ticket.cancelled:  # while it had no place in either list
                    self._dropped.append(part)
            self._reserved += part.bytes
            self.meters.prompt_tokens += len(job.prompt)
            self._gauge()

    def _next(self) -> Part | None:
        """Takes the oldest request out of the queue if there is a row and memory for it."""
        with self._changed:
            if not self._waiting or not self._batch.free_rows:
                return None
            part = self._waiting[0]
            most = len(part.job.prompt) + part.job.max_new_tokens
            part.bytes = self.session.row_bytes(min(most, self.session.capacity))
            if self._running and self._reserved + part.bytes > self._budget:
                return None  # and no younger one instead: it would wait for ever
            # In this order: at no moment is a request that is about to run in neither count.
            self.meters.active = len(self._running) + 1
            self.meters.waiting = len(self._waiting) - 1
            return self._waiting.popleft()

    def _step(self) -> None:
        self._step_began = began = time.monotonic()
        tokens = self._batch.step()
        self._step_began = None
        now = time.monotonic()
        self.meters.step(now - began, len(tokens))
        self._deliver(tokens, now)
        self._gauge()

    def _deliver(self, tokens: Sequence[BatchToken], now: float) -> None:
        by_ticket: dict[Ticket, list[tuple[int, Item]]] = {}
        for found in tokens:
            part = self._running[found.request]
            self.meters.token(now - part.last_token, first=part.tokens == 0)
            part.tokens, part.last_token = part.tokens + 1, now
            items = by_ticket.setdefault(part.ticket, [])
            reason = found.token.finish_reason
            if reason == "error":
                items.append((part.index, Failed("the model's logits are not finite")))
            else:
                items.append((part.index, found.token))
            if reason is not None:  # the batch has freed its row
                self._release(part, reason)
                items.append((part.index, Ended()))
        for ticket, items in by_ticket.items():
            ticket.deliver(items)

    def _release(self, part: Part, outcome: str) -> None:
        with self._changed:
            del self._running[part.request]
        self._reserved -= part.bytes
        self.meters.finished(outcome)
        self._gauge()

    def _gauge(self) -> None:
        self.meters.active, self.meters.kv_reserved = len(self._running), self._reserved
        now = time.monotonic()
        if not self._running or now - self._gauged >= GAUGE_SECONDS:  # counting takes milliseconds
            self.meters.kv_used, self._gauged = self._batch.cache_bytes, now

    def _fail_all(self, reason: str) -> None:
        with self._changed:
            self._down = reason
            parts = [*self._running.values(), *self._waiting]
            self._running.clear()
            self._waiting.clear()
            self.meters.waiting = self.meters.active = 0
            self.meters.kv_reserved = self.meters.kv_used = 0
        for part in parts:
            self.meters.finished("failed")
            part.ticket.deliver([(part.index, Failed(reason))])
