"""From requests to jobs of the engine: texts become tokens, and what cannot fit is refused."""

from __future__ import annotations

from engine import Engine
from errors import ApiError
from openai_api import ChatRequest, CompletionRequest, Sampling
from ticket import Job

from minicache.runtime.errors import MiniCacheError
from minicache.runtime.generate_options import Prompt, prompt_ids


def completion_jobs(engine: Engine, request: CompletionRequest) -> list[Job]:
    """One job per prompt and choice, in the order of the answer's choices.

    Raises:
        ApiError: a prompt is empty, too long, or has unknown tokens.
    """
    prompts = request.prompts()
    if not prompts:
        raise ApiError(400, "prompt is an empty list; give one or more", "prompt", "invalid_value")
    _check_count(engine, len(prompts) * request.n)
    encoded = [_encode(engine, prompt, "prompt", chat=False) for prompt in prompts]
    return [
        _job(engine, request, ids, request.max_tokens, choice, "prompt")
        for ids in encoded
        for choice in range(request.n)
    ]


def chat_jobs(engine: Engine, request: ChatRequest) -> list[Job]:
    """One job per choice; without a limit an answer may take all that is left of the context.

    Raises:
        ApiError: as ``completion_jobs``; or the chat template does not take the conversation.
    """
    _check_count(engine, request.n)
    messages = [message.plain() for message in request.messages]
    ids = _encode(engine, messages, "messages", chat=True)
    limit = request.limit or max(engine.context - len(ids), 1)
    return [_job(engine, request, ids, limit, choice, "messages") for choice in range(request.n)]


def _check_count(engine: Engine, count: int) -> None:
    """More than the engine ever holds would be told to come again for ever."""
    most = engine.session.batch_size + engine.options.waiting
    if count > most:
        message = f"the request asks for {count} answers, this server takes {most} at a time"
        raise ApiError(400, message, "n", "too_many_choices")


def _encode(engine: Engine, prompt: Prompt, param: str, *, chat: bool) -> list[int]:
    try:
        return prompt_ids(engine.session, prompt, chat)
    except MiniCacheError as error:
        # Where the model lies is nobody's business.
        message = str(error).replace(str(engine.session.folder), engine.session.folder.name)
        raise ApiError(400, message, param, "invalid_value") from error


def _job(
    engine: Engine, request: Sampling, ids: list[int], limit: int, choice: int, param: str
) -> Job:
    context = engine.context
    if len(ids) + limit > context:
        raise ApiError(
            400,
            f"this server's context is {context} tokens, {len(ids) + limit} are asked for "
            f"({len(ids)} in the {param}, {limit} new ones); shorten one of them",
            param,
            "context_length_exceeded",
        )
    return Job(ids, limit, request.options(choice))
