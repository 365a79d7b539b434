"""How large an engine is: rows, context, budget of KV bytes, queue."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from minicache.runtime import Session
from minicache.runtime.errors import SessionError


@dataclass(frozen=True)
class EngineOptions:
    """Sizes of an engine.

    Attributes:
        rows: requests that decode side by side, at most.
        kv_bytes: budget of the KV cache of all of them; None: as much as full rows take.
        context: tokens of a request, prompt and answer; None: the model's maximum.
        waiting: requests that may wait for a row and for bytes.
        chunk: prompt tokens per step: smaller ones disturb the other requests' pace less.
        threads: CPU threads of the model; None: ONNX Runtime's choice.
    """

    rows: int = 16
    kv_bytes: int | None = None
    context: int | None = None
    waiting: int = 64
    chunk: int = 256
    threads: int | None = None


def context_within(session: Session, kv_bytes: int | None) -> int:
    """Tokens of the longest request whose KV cache the budget holds.

    Raises:
        SessionError: not one token.
    """
    if kv_bytes is None:
        return session.capacity
    lengths = range(session.capacity + 1)
    longest = bisect_right(lengths, kv_bytes, key=session.row_bytes) - 1
    if longest < 1:
        raise SessionError(
            f"kv_bytes is {kv_bytes}, one token takes {session.row_bytes(1)}; give more"
        )
    return longest
