"""The decode loop: prompt in, tokens out, one at a time."""

from __future__ import annotations

import dataclasses
import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, cast

from minicache.runtime import checks
from minicache.runtime.errors import SessionError
from minicache.runtime.metrics import log_softmax
from minicache.runtime.sampling import Sampler, SamplingOptions
from minicache.runtime.stop import StopMatcher
from minicache.runtime.tokenizer import IncrementalDecoder

if TYPE_CHECKING:
    from minicache.runtime.session import Session

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class GeneratedToken:
    """One new token.

    Attributes:
        token_id: its number.
        text: what it adds to the text; empty while a character or a stop string is incomplete.
        logprob: natural logarithm of the model's own probability, before temperature and penalty.
        finish_reason: on the last token: ``eos``, ``stop`` (a stop string) or ``length`` (enough
            tokens, or the cache is full); None before.
    """

    token_id: int
    text: str
    logprob: float
    finish_reason: str | None = None


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


class GenerateOptions(TypedDict, total=False):
    """How to generate; the first five are those of ``SamplingOptions``, with its defaults.

    Attributes:
        temperature: 0 (the default) is greedy.
        top_k: keep the k most likely tokens.
        top_p: keep the smallest set of tokens that reaches this probability.
        repetition_penalty: over 1 makes tokens that occurred less likely.
        seed: of the random numbers.
        stop: strings that end the text; they are not shown.
        chat: put the prompt into the model's chat template.
        progress: called with a number of prompt tokens as they are read.
    """

    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float
    seed: int | None
    stop: str | Sequence[str]
    chat: bool
    progress: Callable[[int], None] | None


def generate(
    session: Session,
    prompt: Prompt,
    max_new_tokens: int,
    *,
    stop: str | Sequence[str] = (),
    chat: bool = False,
    progress: Callable[[int], None] | None = None,
    **sampling: Any,
) -> Iterator[GeneratedToken]:
    """Checks the arguments, and returns an iterator that resets the session and generates.

    Args:
        session: of one row; its cache is emptied when the first token is asked for.
        prompt: a text; token ids; or, with ``chat``, messages with ``role`` and ``content``.
        max_new_tokens: at most so many.
        stop: as the next ones, see ``GenerateOptions``.
        chat: likewise.
        progress: likewise.
        sampling: the fields of ``SamplingOptions``.

    Raises:
        SessionError: more than one row, an empty prompt, or an option out of range.
        CapacityError: the prompt does not fit into the cache (with the first token).
        PackageError: a tokenizer or chat template is needed and missing.
    """
    if session.batch_size != 1:
        raise SessionError(
            f"generate() drives one row, the session has {session.batch_size}; open it with "
            "batch_size=1, or drive rows with forward()"
        )
    checks.whole_number("max_new_tokens", max_new_tokens)
    try:
        sampler = Sampler(SamplingOptions(**sampling))
    except TypeError as error:
        raise SessionError(f"an option of generate() is unknown or no number ({error})") from error
    if not isinstance(stop, (str, list, tuple)) or not all(isinstance(text, str) for text in stop):
        raise SessionError(f"stop is {stop!r}; give a text or a list of texts")
    stops = [stop] if isinstance(stop, str) else list(stop)
    if stops:
        session.tokenizer  # noqa: B018 - stop strings need text: says so if there is no tokenizer
    ids = prompt_ids(session, prompt, chat)
    return _steps(session, ids, max_new_tokens, sampler, StopMatcher(stops), progress)


def prompt_ids(session: Session, prompt: Prompt, chat: bool) -> list[int]:
    """Returns the token ids of a prompt.

    Raises:
        SessionError: the prompt is empty or mixes kinds.
        PackageError: a tokenizer or chat template is needed and missing.
    """
    if isinstance(prompt, str):
        if not chat:
            ids = session.tokenizer.encode(prompt)
        else:
            ids = session.tokenizer.encode_chat([{"role": "user", "content": prompt}])
        session.tokenizer.check_ids(ids, session.manifest.vocab_size)
    elif chat:
        if not all(isinstance(message, Mapping) for message in prompt):
            raise SessionError("with chat the prompt is a text or messages, not token ids")
        ids = session.tokenizer.encode_chat(cast("Sequence[Mapping[str, str]]", prompt))
    else:
        try:
            if isinstance(prompt, bytes):
                raise TypeError("bytes")
            ids = [operator.index(token) for token in cast("Sequence[int]", prompt)]
        except TypeError as error:
            raise SessionError(f"the prompt is neither a text nor token ids ({error})") from error
    if not ids:
        raise SessionError("the prompt is empty; give at least one token")
    last = session.manifest.vocab_size - 1
    wrong = [token for token in ids if not 0 <= token <= last]
    if wrong:
        raise SessionError(f"the prompt holds token {wrong[0]}; the vocabulary ends at {last}")
    return ids


def _steps(
    session: Session,
    ids: list[int],
    max_new_tokens: int,
    sampler: Sampler,
    matcher: StopMatcher,
    progress: Callable[[int], None] | None,
) -> Iterator[GeneratedToken]:
    stats = GenerationStats(len(ids), session.cache_bytes)
    session.last_stats = stats
    decoder = IncrementalDecoder(session.tokenizer, ids) if session.has_tokenizer else None
    eos = frozenset(session.manifest.eos_token_ids)
    session.reset()
    start = time.perf_counter()
    logits = session.prefill(ids, progress=progress)[0]
    stats.prefill_seconds = time.perf_counter() - start
    seen = list(ids)
    while True:
        start = time.perf_counter()
        token = sampler.choose(logits, seen)
        logprob = float(log_softmax(logits)[token])
        seen.append(token)
        stats.new_tokens += 1
        reason, text = None, ""
        if token in eos:
            reason = "eos"
        elif decoder is not None:
            text, stopped = matcher.add(decoder.add(token))
            reason = "stop" if stopped else None
        if reason is None and (
            stats.new_tokens == max_new_tokens or session.lengths[0] == session.capacity
        ):
            reason = "length"
        if reason in ("eos", "length") and decoder is not None:
            rest, stopped = matcher.add(decoder.flush())
            text += rest + ("" if stopped else matcher.flush())
        stats.decode_seconds += time.perf_counter() - start
        yield GeneratedToken(token, text, logprob, reason)
        if reason is not None:
            return
        # The caller's time between two tokens is not the model's.
        start = time.perf_counter()
        if session.lengths[0] != len(seen) - 1:
            raise SessionError(
                "the session was used for something else while generate() was at work; "
                "read its tokens to the end first, or open a session for each"
            )
        logits = session.forward([[token]], logits="last")[0, 0]
        stats.decode_steps += 1
        stats.decode_seconds += time.perf_counter() - start
