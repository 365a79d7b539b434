"""Continues a list of prompts, as many at a time as a session has rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minicache.runtime.batch import Batch
from minicache.runtime.errors import MiniCacheError, SessionError
from minicache.runtime.generate_options import GenerateOptions, Prompt, continuation
from minicache.runtime.generated_token import GeneratedToken

if TYPE_CHECKING:
    from minicache.runtime.session import Session


@dataclass(frozen=True)
class Completion:
    """What came after one prompt.

    Attributes:
        prompt_tokens: tokens of the prompt.
        tokens: the new ones, with text and logprobs.
    """

    prompt_tokens: int
    tokens: tuple[GeneratedToken, ...]

    @property
    def text(self) -> str:
        """The new text."""
        return "".join(token.text for token in self.tokens)

    @property
    def token_ids(self) -> list[int]:
        """The new tokens' numbers."""
        return [token.token_id for token in self.tokens]

    @property
    def finish_reason(self) -> str | None:
        """Why it ended; see ``GeneratedToken``."""
        return self.tokens[-1].finish_reason


def generate_batch(
    session: Session,
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    on_token: Callable[[int, GeneratedToken], None] | None,
    options: GenerateOptions,
) -> list[Completion]:
    """Checks all prompts, then continues them; see ``Session.generate_batch``.

    Raises:
        SessionError: a prompt or an option is wrong, or the model computes nothing useful; the
            message says for which prompt.
        CapacityError: a prompt does not fit into a row.
        PackageError: a tokenizer or chat template is needed and missing.
    """
    if isinstance(prompts, str):
        raise SessionError("prompts is one text; give a list of prompts, or use generate()")
    texts = []
    for place, prompt in enumerate(prompts):
        try:
            texts.append(continuation(session, prompt, max_new_tokens, options))
        except MiniCacheError as error:
            raise type(error)(f"prompts[{place}]: {error}") from error
    batch = Batch(session)
    waiting = list(range(len(texts)))
    places: dict[int, int] = {}
    tokens: list[list[GeneratedToken]] = [[] for _ in texts]
    while waiting or batch.active:
        while waiting and batch.free_rows:
            place = waiting.pop(0)
            places[batch.resume(texts[place])] = place
        for request, token in batch.step():
            place = places[request]
            if token.finish_reason == "error":
                raise SessionError(
                    f"prompts[{place}]: the logits are not finite: the model computed nothing "
                    "useful; check the export with minicache evaluate"
                )
            tokens[place].append(token)
            if on_token is not None:
                on_token(place, token)
    return [
        Completion(text.prompt_tokens, tuple(found))
        for text, found in zip(texts, tokens, strict=True)
    ]
