"""The decode loop of one row: prompt in, tokens out, one at a time."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minicache.runtime.continuation import Continuation
from minicache.runtime.errors import SessionError
from minicache.runtime.generate_options import GenerateOptions, Prompt, continuation
from minicache.runtime.generated_token import GeneratedToken

if TYPE_CHECKING:
    from minicache.runtime.row_calls import RowCalls

__all__ = ["GenerateOptions", "GeneratedToken", "GenerationStats", "generate"]


@dataclass
class GenerationStats:
    """Counts and speeds of one generation.

    Attributes:
        prompt_tokens: tokens of the prompt.
        new_tokens: tokens generated so far.
        prefill_seconds: time in the prompt.
        decode_seconds: time in the decode steps.
        decode_steps: calls of the model after the prompt: one less than the new tokens.
        cache_bytes: bytes of the session's state buffers.
    """

    prompt_tokens: int
    cache_bytes: int
    new_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    decode_steps: int = 0

    @property
    def prefill_tokens_per_second(self) -> float:
        """Prompt tokens per second; 0 before the prompt is read."""
        return self.prompt_tokens / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_tokens_per_second(self) -> float:
        """Decode steps per second, sampling included; 0 before the first one."""
        return self.decode_steps / self.decode_seconds if self.decode_seconds else 0.0

    def to_dict(self) -> dict[str, float]:
        """Returns the values, speeds included, as JSON-ready data."""
        speeds = {
            "prefill_tokens_per_second": self.prefill_tokens_per_second,
            "decode_tokens_per_second": self.decode_tokens_per_second,
        }
        return {**dataclasses.asdict(self), **speeds}


def generate(
    rows: RowCalls, prompt: Prompt, max_new_tokens: int, options: GenerateOptions
) -> Iterator[GeneratedToken]:
    """Checks the arguments, and returns an iterator that resets the row and generates.

    Args:
        rows: one row; it is emptied when the first token is asked for.
        prompt: a text; token ids; or, with ``chat``, messages with ``role`` and ``content``.
        max_new_tokens: at most so many.
        options: see ``GenerateOptions``.

    Raises:
        SessionError: more than one row, an empty prompt, or an option out of range.
        CapacityError: the prompt does not fit into the cache.
        PackageError: a tokenizer or chat template is needed and missing.
    """
    if rows.batch_size != 1:
        raise SessionError(
            f"generate() drives one row, the session has {rows.batch_size}; use generate_batch(), "
            "or rows(0).generate() for one of them"
        )
    return _steps(rows, continuation(rows.session, prompt, max_new_tokens, options))


def _steps(rows: RowCalls, text: Continuation) -> Iterator[GeneratedToken]:
    session = rows.session
    stats = GenerationStats(text.prompt_tokens, session.cache_bytes)
    session.last_stats = stats
    rows.reset()
    start = time.perf_counter()
    logits = rows.prefill(text.tokens, progress=text.progress)[0]
    stats.prefill_seconds = time.perf_counter() - start
    while True:
        start = time.perf_counter()
        token = text.take(logits, full=rows.lengths[0] == session.capacity)
        stats.new_tokens += 1
        stats.decode_seconds += time.perf_counter() - start
        yield token
        if text.finished:
            return
        # The caller's time between two tokens is not the model's.
        start = time.perf_counter()
        if rows.lengths[0] != len(text.tokens) - 1:
            raise SessionError(
                "the session was used for something else while generate() was at work; "
                "read its tokens to the end first, or open a session for each"
            )
        logits = rows.forward([[token.token_id]], logits="last")[0, 0]
        stats.decode_steps += 1
        stats.decode_seconds += time.perf_counter() - start
