"""What a generation gives, token by token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class TokenLogprob(NamedTuple):
    """A token that might have come, and the natural logarithm of its probability."""

    token_id: int
    logprob: float


@dataclass(frozen=True)
class GeneratedToken:
    """One new token.

    Attributes:
        token_id: its number.
        text: what it adds to the text; empty while a character or a stop string is incomplete.
        logprob: natural logarithm of the model's own probability, before temperature and penalty.
        finish_reason: on the last token: ``eos``, ``stop`` (a stop string or stop token) or
            ``length`` (enough tokens, or the cache is full); None before.
        top_logprobs: the most likely tokens, the first one most, as many as ``logprobs`` asked for.
    """

    token_id: int
    text: str
    logprob: float
    finish_reason: str | None = None
    top_logprobs: tuple[TokenLogprob, ...] = ()
