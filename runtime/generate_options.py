"""What a generation can be asked for, and its arguments checked before anything is computed."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, cast

import numpy as np

from minicache.runtime import checks
from minicache.runtime.continuation import Continuation
from minicache.runtime.errors import SessionError
from minicache.runtime.sampling import Sampler, SamplingOptions
from minicache.runtime.stop import StopMatcher
from minicache.runtime.tokenizer import IncrementalDecoder

if TYPE_CHECKING:
    from minicache.runtime.session import Session

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]


class GenerateOptions(TypedDict, total=False):
    """How to generate; the first six are those of ``SamplingOptions``, with its defaults.

    Attributes:
        temperature: 0 (the default) is greedy.
        top_k: keep the k most likely tokens.
        top_p: keep the smallest set of tokens that reaches this probability.
        min_p: keep tokens that are at least this likely, as a part of the likeliest one.
        repetition_penalty: over 1 makes tokens that occurred less likely.
        seed: of the random numbers.
        stop: strings that end the text; they are not shown.
        stop_token_ids: tokens that end the text; they are given, without their text.
        logprobs: give so many of the likeliest tokens with each token, and their logprobs.
        chat: put the prompt into the model's chat template.
        progress: called with a number of prompt tokens as they are read.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    seed: int | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    logprobs: int
    chat: bool
    progress: Callable[[int], None] | None


def continuation(
    session: Session, prompt: Prompt, max_new_tokens: int, options: GenerateOptions
) -> Continuation:
    """Checks a request, and makes of it what draws its tokens.

    Args:
        session: whose model, tokenizer and capacity; nothing of it changes.
        prompt: a text; token ids; or, with ``chat``, messages with ``role`` and ``content``.
        max_new_tokens: at most so many.
        options: see ``GenerateOptions``.

    Raises:
        SessionError: an empty prompt, or an option out of range.
        CapacityError: the prompt does not fit into a row.
        PackageError: a tokenizer or chat template is needed and missing.
    """
    checks.whole_number("max_new_tokens", max_new_tokens)
    given: dict[str, Any] = dict(options)
    stops = _stop_strings(given.pop("stop", ()))
    last = session.manifest.vocab_size - 1
    stop_tokens = _token_ids("stop_token_ids", given.pop("stop_token_ids", ()), last)
    logprobs = given.pop("logprobs", 0)
    if logprobs != 0:
        checks.whole_number("logprobs", logprobs)
    chat, progress = given.pop("chat", False), given.pop("progress", None)
    try:
        sampler = Sampler(SamplingOptions(**given))
    except TypeError as error:
        raise SessionError(f"an option of generate() is unknown or no number ({error})") from error
    if stops:
        session.tokenizer  # noqa: B018 - stop strings need text: says so if there is no tokenizer
    ids = prompt_ids(session, prompt, chat)
    empty, new = np.zeros(1, np.int32), np.array([len(ids)])
    checks.capacity(empty, new, session.capacity, session.manifest)
    return Continuation(
        ids,
        max_new_tokens,
        sampler,
        StopMatcher(stops),
        IncrementalDecoder(session.tokenizer, ids) if session.has_tokenizer else None,
        eos=frozenset(session.manifest.eos_token_ids),
        stop_tokens=frozenset(stop_tokens),
        logprobs=logprobs,
        progress=progress,
    )


def prompt_ids(session: Session, prompt: Prompt, chat: bool = False) -> list[int]:
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
        ids = _token_ids("prompt", prompt, session.manifest.vocab_size - 1)
    if not ids:
        raise SessionError("the prompt is empty; give at least one token")
    return ids


def _token_ids(name: str, given: Any, last: int) -> list[int]:
    try:
        if isinstance(given, (bytes, str)):
            raise TypeError(type(given).__name__)
        ids = [operator.index(token) for token in cast("Iterable[int]", given)]
    except TypeError as error:
        raise SessionError(f"{name}: neither a text nor token ids ({error})") from error
    wrong = [token for token in ids if not 0 <= token <= last]
    if wrong:
        raise SessionError(f"{name} holds token {wrong[0]}; the vocabulary ends at {last}")
    return ids


def _stop_strings(stop: Any) -> list[str]:
    if not isinstance(stop, (str, list, tuple)) or not all(isinstance(text, str) for text in stop):
        raise SessionError(f"stop is {stop!r}; give a text or a list of texts")
    return [stop] if isinstance(stop, str) else list(stop)
