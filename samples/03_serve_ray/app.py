"""The HTTP side: OpenAI's endpoints, metrics and health, over an engine.

``build_app`` needs no Ray: any ASGI server runs it, one process per engine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import jobs
from engine import Engine, EngineDownError, QueueFullError
from errors import ApiError, engine_error
from fastapi import FastAPI, Request
from metrics import CONTENT_TYPE, metrics_text
from openai_answers import DONE, Answer, event
from openai_api import ChatRequest, CompletionRequest, Sampling, read_request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send
from ticket import FailedError, Job, RefusedError, Ticket

from minicache.runtime import GeneratedToken

MOST_BYTES = 8 << 20  # of a body: far more than any context of text
RETRY_SECONDS = 1
HUNG_UP = 499  # as nginx logs it: nobody reads the answer


class EventStream(StreamingResponse):
    """Streams the events of a ticket; the rows are given back however the stream ends."""

    def __init__(self, events: AsyncIterator[bytes], ticket: Ticket) -> None:
        headers = {"X-Accel-Buffering": "no", "Cache-Control": "no-cache"}  # no proxy holds it back
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._ticket = ticket

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As an ASGI application."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ticket.cancel()


def build_app(
    current: Callable[[], Engine], labels: Callable[[], dict[str, str]] = dict
) -> FastAPI:
    """Makes the application.

    Args:
        current: returns the engine; called with every request.
        labels: of the metrics.
    """
    app = FastAPI(title="minicache", docs_url=None, redoc_url=None, openapi_url=None)
    born = int(time.time())

    def card() -> dict[str, Any]:
        return {"id": current().name, "object": "model", "created": born, "owned_by": "minicache"}

    @app.exception_handler(ApiError)
    async def say(_: Request, error: ApiError) -> Response:
        return _refusal(error)

    @app.exception_handler(HTTPException)
    async def say_http(_: Request, error: HTTPException) -> Response:
        return _refusal(ApiError(error.status_code, str(error.detail).lower(), code="http_error"))

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        body = await _read(request, CompletionRequest, current())
        made = await asyncio.to_thread(jobs.completion_jobs, current(), body)
        per_prompt = made[:: body.n]
        return await _answer(request, body, made, per_prompt, current(), chat=False)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        body = await _read(request, ChatRequest, current())
        made = await asyncio.to_thread(jobs.chat_jobs, current(), body)
        return await _answer(request, body, made, made[:1], current(), chat=True)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card()]}

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        _check_model(name, current())
        return card()

    @app.get("/health")
    async def health() -> Response:
        try:
            current().check()
        except EngineDownError as error:
            return _refusal(ApiError(503, str(error), code="engine_failed"))
        return JSONResponse({"status": "ok"})

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(metrics_text(current().meters, labels()), media_type=CONTENT_TYPE)

    return app


def _refusal(error: ApiError) -> Response:
    headers = {"Retry-After": str(RETRY_SECONDS)} if error.status == 429 else None
    return JSONResponse(error.content(), error.status, headers)


def _check_model(name: str, engine: Engine) -> None:
    if name != engine.name:
        message = f"the model {name!r} is not served here, only {engine.name!r}"
        raise ApiError(404, message, "model", "model_not_found")


async def _read(request: Request, kind: type[Any], engine: Engine) -> Any:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            message = f"the body has more than {MOST_BYTES} bytes"
            raise ApiError(413, message, code="body_too_large")
    read = read_request(kind, bytes(body))
    _check_model(read.model, engine)
    return read


async def _answer(
    request: Request,
    body: Sampling,
    made: list[Job],
    prompts: list[Job],
    engine: Engine,
    *,
    chat: bool,
) -> Response:
    answer = Answer(
        chat=chat,
        model=body.model,
        choices=len(made),
        prompt_tokens=sum(len(job.prompt) for job in prompts),
        likely=body.likely,
        spell=_speller(engine),
    )
    try:
        ticket = engine.submit(made)
    except QueueFullError as error:
        raise ApiError(429, f"{error}; try again later", code="queue_full") from error
    except EngineDownError as error:
        raise ApiError(503, str(error), code="engine_failed") from error
    try:
        return await _from_ticket(request, body, answer, ticket)
    except BaseException as error:  # also a cancellation: the server may notice before us
        ticket.cancel()
        if isinstance(error, ClientDisconnect):
            return Response(status_code=HUNG_UP)
        raise


def _speller(engine: Engine) -> Callable[[int], str]:
    """Text of a token alone; empty without a tokenizer, as all text is then."""
    if not engine.session.has_tokenizer:
        return lambda token: ""
    return lambda token: engine.session.tokenizer.decode([token])


async def _from_ticket(
    request: Request, body: Sampling, answer: Answer, ticket: Ticket
) -> Response:
    tokens = ticket.tokens()
    try:
        if body.stream:
            # The first token decides on the status: behind it stands a 200 for good.
            first = await _while_connected(request, _next(tokens))
            events = _events(answer, first, tokens, usage=body.stream_options.include_usage)
            return EventStream(events, ticket)
        return JSONResponse(await _while_connected(request, _whole(answer, tokens)))
    except RefusedError as error:
        raise ApiError(400, str(error), code="invalid_value") from error
    except FailedError as error:
        raise engine_error(str(error)) from error


async def _next(
    tokens: AsyncIterator[tuple[int, GeneratedToken]],
) -> tuple[int, GeneratedToken]:
    return await anext(tokens)


async def _whole(
    answer: Answer, tokens: AsyncIterator[tuple[int, GeneratedToken]]
) -> dict[str, Any]:
    async for index, token in tokens:
        answer.add(index, token)
    return answer.whole()


async def _events(
    answer: Answer,
    first: tuple[int, GeneratedToken],
    rest: AsyncIterator[tuple[int, GeneratedToken]],
    *,
    usage: bool,
) -> AsyncIterator[bytes]:
    for opening in answer.opening():
        yield opening
    answer.add(*first)
    yield answer.piece(*first)
    try:
        async for index, token in rest:
            answer.add(index, token)
            yield answer.piece(index, token)
    except FailedError as error:
        yield event(engine_error(str(error)).content())
        return
    except RefusedError as error:  # of a later one of several prompts
        yield event(ApiError(400, str(error), code="invalid_value").content())
        return
    if usage:
        yield answer.closing()
    yield DONE


async def _while_connected(request: Request, work: Any) -> Any:
    """Awaits ``work``, unless the client hangs up before.

    Raises:
        ClientDisconnect: it has.
    """
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_hang_up(request))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, gone):
            task.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


async def _hang_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
