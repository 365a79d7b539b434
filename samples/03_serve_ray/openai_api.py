"""Requests of OpenAI's API: their models, and what is wrong with those that do not fit."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import pydantic_core
from errors import ApiError
from parameters import screen
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from minicache.runtime.generate_options import GenerateOptions

MOST_CHOICES = 128  # as OpenAI bounds n
MOST_STOPS = 4
MOST_LISTED = 20  # likely tokens

TokenId = Annotated[int, Field(ge=0)]
Stop = Annotated[str, Field(min_length=1)]


class StreamOptions(BaseModel):
    """Of a streamed answer."""

    model_config = ConfigDict(extra="ignore", strict=True)
    include_usage: bool = False


class Sampling(BaseModel):
    """What both endpoints take; the last four are extensions that other servers have, too."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    model: str
    temperature: float = Field(1.0, ge=0.0, le=2.0)
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    n: int = Field(1, ge=1, le=MOST_CHOICES)
    seed: int | None = Field(None, ge=0, lt=2**63)
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS)] = []
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    top_k: int = Field(0, ge=0)
    min_p: float = Field(0.0, ge=0.0, le=1.0)
    repetition_penalty: float = Field(1.0, gt=0.0, le=10.0)
    stop_token_ids: list[TokenId] = []

    def options(self, choice: int) -> GenerateOptions:
        """For the engine; with a seed, every choice of a request has one of its own."""
        options: GenerateOptions = {
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "seed": None if self.seed is None else self.seed + choice,
            "stop": self.stop,
            "stop_token_ids": self.stop_token_ids,
            "logprobs": self.likely or 0,
        }
        return options

    @property
    def likely(self) -> int | None:
        """How many likely tokens to list with each token; None: no logprobs at all."""
        raise NotImplementedError


class CompletionRequest(Sampling):
    """Body of ``/v1/completions``."""

    prompt: str | list[str] | list[TokenId] | list[list[TokenId]] = Field(union_mode="smart")
    max_tokens: int = Field(16, ge=1)
    logprobs: int | None = Field(None, ge=0, le=MOST_LISTED)

    def prompts(self) -> list[str] | list[list[int]]:
        """One or more of them."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt  # type: ignore[return-value] # token ids were wrapped above

    @property
    def likely(self) -> int | None:
        """As of every request."""
        return self.logprobs


class TextPart(BaseModel):
    """A piece of a message."""

    model_config = ConfigDict(extra="forbid", strict=True)
    type: Literal["text"]
    text: str


class Message(BaseModel):
    """Of a conversation; ``name`` is taken and not shown to the model."""

    model_config = ConfigDict(extra="forbid", strict=True)
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None

    def plain(self) -> dict[str, str]:
        """For a chat template; ``developer`` is the newer word for ``system``."""
        parts = self.content
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatRequest(Sampling):
    """Body of ``/v1/chat/completions``."""

    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=MOST_LISTED)

    @property
    def limit(self) -> int | None:
        """New tokens asked for; None: as many as fit."""
        given = self.max_completion_tokens
        return self.max_tokens if given is None else given

    @property
    def likely(self) -> int | None:
        """As of every request."""
        return self.top_logprobs if self.logprobs else None


Request = TypeVar("Request", bound=Sampling)


def read_request(kind: type[Request], body: bytes) -> Request:
    """Reads the body of a request.

    Raises:
        ApiError: no JSON, no object, an unknown parameter, or a value of another type or range.
    """
    try:
        content = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, f"the body is not JSON ({error})", code="invalid_json") from error
    if not isinstance(content, dict):
        raise ApiError(400, "the body is not a JSON object", code="invalid_json")
    try:
        return kind.model_validate(screen(content))
    except ValidationError as error:
        raise _explained(error, content) from error


def _explained(error: ValidationError, content: dict[str, Any]) -> ApiError:
    """One sentence about the first thing that is wrong."""
    # Of a union, pydantic reports every alternative: the one that got furthest says most.
    found: list[Any] = error.errors(include_url=False, include_input=False)
    first = found[0]
    same = [entry for entry in found if entry["loc"][0] == first["loc"][0]]
    first = max(same, key=lambda entry: len(entry["loc"]))
    name = str(first["loc"][0])
    place = _place(first["loc"], content)
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"unknown parameter {place!r}", name, "unknown_parameter")
    if first["type"] == "missing":
        return ApiError(400, f"{place} is missing", name, "missing_required_parameter")
    if name == "prompt":  # pydantic would tell of one of the four alternatives
        message = "prompt is neither a text, token ids, nor a list of texts or of token ids"
        return ApiError(400, message, name, "invalid_value")
    message = first["msg"][0].lower() + first["msg"][1:]
    return ApiError(400, f"{place}: {message}", name, "invalid_value")


def _place(steps: tuple[int | str, ...], content: Any) -> str:
    """Where in the request; pydantic also names the alternatives of a union, which are no place."""
    names = []
    for number, step in enumerate(steps):
        if isinstance(content, dict) and (step in content or number == len(steps) - 1):
            names.append(str(step))
            content = content.get(step)
        elif isinstance(content, list) and isinstance(step, int):
            names.append(str(step))
            content = content[step]
    return ".".join(names)
