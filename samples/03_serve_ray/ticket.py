"""What a request gets from the engine: a ticket, whose tokens are read in the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from minicache.runtime import GeneratedToken
from minicache.runtime.generate_options import GenerateOptions


@dataclass(frozen=True)
class Job:
    """One prompt to continue.

    Attributes:
        prompt: token ids.
        max_new_tokens: at most so many; with the prompt no more than the context.
        options: of the generation.
    """

    prompt: Sequence[int]
    max_new_tokens: int
    options: GenerateOptions = field(default_factory=GenerateOptions)


class RefusedError(Exception):
    """The batch does not take a job; its message says why."""


class FailedError(Exception):
    """The engine failed before the request was done."""


@dataclass(frozen=True)
class Ended:
    """A job is done."""


@dataclass(frozen=True)
class Refused:
    """The batch did not take a job."""

    reason: str


@dataclass(frozen=True)
class Failed:
    """The engine failed."""

    reason: str


Item = GeneratedToken | Ended | Refused | Failed


class Ticket:
    """Tokens of the jobs of one request, in the order in which the model makes them.

    Args:
        jobs: number of jobs.
        loop: in which it is read.
        cancel: tells the engine that nobody reads it any more.

    Attributes:
        cancelled: the engine's note that this was said.
    """

    def __init__(
        self, jobs: int, loop: asyncio.AbstractEventLoop, cancel: Callable[[Ticket], None]
    ) -> None:
        self._open, self._loop, self._cancel = jobs, loop, cancel
        self.cancelled = False
        self._items: asyncio.Queue[tuple[int, Item]] = asyncio.Queue()

    def deliver(self, items: Sequence[tuple[int, Item]]) -> None:
        """Hands items to the event loop; called by the worker."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._put, items)

    def _put(self, items: Sequence[tuple[int, Item]]) -> None:
        for item in items:
            self._items.put_nowait(item)

    async def tokens(self) -> AsyncIterator[tuple[int, GeneratedToken]]:
        """Yields tokens with the number of their job, until all jobs are done.

        Raises:
            RefusedError: the batch does not take a job.
            FailedError: the engine failed.
        """
        while self._open:
            index, item = await self._items.get()
            if isinstance(item, Ended):
                self._open -= 1
            elif isinstance(item, Refused):
                raise RefusedError(item.reason)
            elif isinstance(item, Failed):
                raise FailedError(item.reason)
            else:
                yield index, item

    def cancel(self) -> None:
        """Gives the rows back; without effect on jobs that are done."""
        if self._open:
            self._open = 0
            self._cancel(self)


@dataclass(eq=False)
class Part:
    """A job within the engine.

    Attributes:
        ticket: of its request.
        index: of the job within the request.
        job: what to do.
        request: its number in the batch, once it has a row.
        bytes: of the KV cache that it may grow to.
        tokens: made so far.
        last_token: when it came in, and later when its last token was made; monotonic seconds.
    """

    ticket: Ticket
    index: int
    job: Job
    request: int = -1
    bytes: int = 0
    tokens: int = 0
    last_token: float = field(default_factory=time.monotonic)
