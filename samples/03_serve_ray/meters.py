"""Counts of an engine, written by its worker and read by whoever wants metrics."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter, deque

# Seconds: upper ends of histogram buckets.
TOKEN_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
FIRST_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
RATE_SECONDS = 10.0  # over which the tokens per second are taken


class Histogram:
    """Counts of values by bucket, as Prometheus has them.

    Args:
        ends: upper ends, ascending; one bucket more takes what is above.
    """

    def __init__(self, ends: tuple[float, ...]) -> None:
        self.ends, self.counts, self.total = ends, [0] * (len(ends) + 1), 0.0

    def add(self, value: float) -> None:
        """Counts a value."""
        self.counts[bisect_left(self.ends, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, int]]:
        """Upper end as text and how many values are at most as large."""
        ends, so_far, rows = [*map(str, self.ends), "+Inf"], 0, []
        for end, count in zip(ends, self.counts, strict=True):
            so_far += count
            rows.append((end, so_far))
        return rows


class Meters:
    """What an engine counts.

    Args:
        kv_bytes: budget of the KV cache.
        rows: of the batch.
        waiting_limit: requests that may wait.

    Attributes:
        active: rows in use.
        kv_used: bytes of the tokens that are in the cache.
        kv_reserved: bytes that the running requests may grow to.
        waiting: requests that wait for a row.
        outcomes: requests by how they ended: ``eos``, ``stop``, ``length``, ``cancelled``,
            ``refused``, ``failed``; ``error``: its logits were not finite; ``queue_full``: never
            queued.
        prompt_tokens: read so far.
        tokens: generated so far.
        steps: calls of the model.
        step_seconds: time in them.
        between_tokens: seconds from one token of a request to the next.
        first_token: seconds from the arrival of a request to its first token.
    """

    def __init__(self, kv_bytes: int, rows: int, waiting_limit: int) -> None:
        self.kv_bytes, self.rows, self.waiting_limit = kv_bytes, rows, waiting_limit
        self.active = self.waiting = self.kv_used = self.kv_reserved = 0
        self.outcomes: Counter[str] = Counter()
        self.prompt_tokens = self.tokens = self.steps = 0
        self.step_seconds = 0.0
        self.between_tokens, self.first_token = Histogram(TOKEN_BUCKETS), Histogram(FIRST_BUCKETS)
        self._recent: deque[tuple[float, int]] = deque()
        self._lock = threading.Lock()

    def finished(self, outcome: str) -> None:
        """A request has ended."""
        with self._lock:  # by the worker and by event loops
            self.outcomes[outcome] += 1

    def step(self, seconds: float, tokens: int) -> None:
        """The model was called."""
        self.steps += 1
        self.step_seconds += seconds
        self.tokens += tokens
        with self._lock:
            self._recent.append((time.monotonic(), tokens))
            self._forget()

    def token(self, seconds: float, *, first: bool) -> None:
        """A request got a token, this long after the one before or its arrival."""
        (self.first_token if first else self.between_tokens).add(seconds)

    def tokens_per_second(self) -> float:
        """Of all rows, over the last ``RATE_SECONDS``."""
        with self._lock:
            self._forget()
            return sum(tokens for _, tokens in self._recent) / RATE_SECONDS

    def _forget(self) -> None:
        while self._recent and self._recent[0][0] < time.monotonic() - RATE_SECONDS:
            self._recent.popleft()
