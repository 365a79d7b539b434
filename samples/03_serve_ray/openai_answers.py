"""Answers of OpenAI's API, whole or in pieces, from the tokens of the engine."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from minicache.runtime import GeneratedToken

DONE = b"data: [DONE]\n\n"
LEAST_LOGPROB = -9999.0
# The model's own end and a stop string are one thing to OpenAI.
REASONS = {"eos": "stop", "stop": "stop", "length": "length", None: None}


def event(content: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(content, ensure_ascii=False).encode() + b"\n\n"


@dataclass
class Choice:
    """What has come of one choice."""

    tokens: list[GeneratedToken] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(token.text for token in self.tokens)

    @property
    def finish_reason(self) -> str | None:
        """None while it goes on."""
        return REASONS[self.tokens[-1].finish_reason] if self.tokens else None


class Answer:
    """Builds the answer to one request.

    Args:
        chat: of ``/v1/chat/completions``.
        model: its name.
        choices: number of them.
        prompt_tokens: of all prompts.
        likely: how many likely tokens to list with each token; None: no logprobs.
        spell: text of a token alone.
    """

    def __init__(
        self,
        *,
        chat: bool,
        model: str,
        choices: int,
        prompt_tokens: int,
        likely: int | None,
        spell: Callable[[int], str],
    ) -> None:
        self._chat, self._prompt_tokens = chat, prompt_tokens
        self._likely, self._spell = likely, spell
        self._choices = [Choice() for _ in range(choices)]
        self._frame = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": "chat.completion" if chat else "text_completion",
            "created": int(time.time()),
            "model": model,
        }

        kind = "chat.completion.chunk" if chat else "text_completion"
        self._part = {**self._frame, "object": kind}  # of pieces

    def add(self, index: int, token: GeneratedToken) -> None:
        """Takes a token of a choice."""
        self._choices[index].tokens.append(token)

    def usage(self) -> dict[str, int]:
        """Counts of tokens so far."""
        new = sum(len(choice.tokens) for choice in self._choices)
        total = self._prompt_tokens + new
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": new,
            "total_tokens": total,
        }

    def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        choices = []
        for index, choice in enumerate(self._choices):
            content = {"role": "assistant", "content": choice.text, "refusal": None}
            body = {"message": content} if self._chat else {"text": choice.text}
            logprobs = self._log(choice.tokens)
            reason = choice.finish_reason
            choices.append({"index": index, **body, "logprobs": logprobs, "finish_reason": reason})
        return {**self._frame, "choices": choices, "usage": self.usage()}

    def opening(self) -> list[bytes]:
        """Events before the first token: who speaks."""
        if not self._chat:
            return []
        delta = {"role": "assistant", "content": ""}
        places = range(len(self._choices))
        return [self._piece(index, {"delta": delta}, [], None) for index in places]

    def piece(self, index: int, token: GeneratedToken) -> bytes:
        """The event of a token."""
        body = {"delta": {"content": token.text}} if self._chat else {"text": token.text}
        return self._piece(index, body, [token], REASONS[token.finish_reason])

    def _piece(
        self, index: int, body: dict[str, Any], made: Sequence[GeneratedToken], reason: str | None
    ) -> bytes:
        choice = {"index": index, **body, "logprobs": self._log(made), "finish_reason": reason}
        return event({**self._part, "choices": [choice]})

    def closing(self) -> bytes:
        """The event that counts tokens, for who asked for it."""
        return event({**self._part, "choices": [], "usage": self.usage()})

    def _log(self, tokens: Sequence[GeneratedToken]) -> dict[str, Any] | None:
        if self._likely is None or not tokens:
            return None
        if self._chat:
            rows = [
                {
                    **self._row(token.token_id, token.logprob),
                    "top_logprobs": [self._row(*other) for other in token.top_logprobs],
                }
                for token in tokens
            ]
            return {"content": rows, "refusal": None}
        likely = [
            {self._spell(other): _shown(value) for other, value in reversed(token.top_logprobs)}
            for token in tokens
        ]
        return {
            "tokens": [self._spell(token.token_id) for token in tokens],
            "token_logprobs": [_shown(token.logprob) for token in tokens],
            "top_logprobs": likely if self._likely else None,
            "text_offset": None,
        }

    def _row(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._spell(token)
        return {"token": text, "logprob": _shown(logprob), "bytes": list(text.encode())}


def _shown(logprob: float) -> float:
    """JSON has no infinity; OpenAI writes this for tokens that are as good as impossible."""
    return max(logprob, LEAST_LOGPROB)
