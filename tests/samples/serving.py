"""The serving sample's modules, an engine of theirs that tests can hold up, and bare HTTP calls."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SAMPLE = Path(__file__).resolve().parents[2] / "samples" / "03_serve_ray"
NAMES = (
    "app", "engine", "errors", "jobs", "meters", "metrics", "openai_answers", "openai_api",
    "parameters", "sizes", "ticket",
)  # fmt: skip
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
COMPLETION: dict[str, Any] = {"model": "tiny", "prompt": "Once", "max_tokens": 6, "temperature": 0}
CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": 6,
    "temperature": 0,
}
PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
Start = Callable[..., tuple[Any, "Gate"]]  # by fields of EngineOptions


@contextmanager
def sample_modules(*more: str) -> Iterator[Any]:
    """The modules by name, found as when a script of the sample is run."""
    sys.path.insert(0, str(SAMPLE))
    try:
        names = (*NAMES, *more)
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    finally:
        sys.path.remove(str(SAMPLE))
        for name in (*NAMES, *more):
            sys.modules.pop(name, None)


class Gate:
    """Lets a batch make steps: any number while open, else as many as were allowed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open, self._allowed, self.error = True, 0, None

    def shut(self) -> None:
        """From now on only what is allowed."""
        with self._changed:
            self._open, self._allowed = False, 0

    def open(self, error: Exception | None = None) -> None:
        """Any number, or that error in the next one."""
        with self._changed:
            self._open, self.error = True, error  # type: ignore[assignment]
            self._changed.notify_all()

    def allow(self, steps: int) -> None:
        """So many more."""
        with self._changed:
            self._allowed += steps
            self._changed.notify_all()

    def pass_one(self) -> None:
        """Waits for a step to be allowed."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._open or self._allowed > 0, timeout=60)
            self._allowed -= not self._open
        if self.error is not None:
            raise self.error


def gated(gate: Gate, step: Callable[[], Any]) -> Callable[[], Any]:
    """A step that waits at the gate first."""

    def wait_and_step() -> Any:
        gate.pass_one()
        return step()

    return wait_and_step


async def until(true: Callable[[], object], seconds: float = 30.0) -> None:
    """Waits for something that another thread does."""
    for _ in range(int(seconds / 0.005)):
        if true():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not happen")


class Call:
    """One HTTP request, as a server hands it to an ASGI application; the client may hang up.

    Attributes:
        status: of the answer, once it has begun.
        parts: of the answer's body.
    """

    def __init__(self, app: Any, path: str, body: dict[str, Any], version: str = "2.3") -> None:
        self.status = 0
        self.parts: list[bytes] = []
        self._sent, self._gone = False, asyncio.Event()
        self._tells = version >= "2.4"  # since then servers raise where nobody reads
        self._body = json.dumps(body).encode()
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": version}, "method": "POST",
            "path": path, "raw_path": path.encode(), "query_string": b"", "headers": [],
            "http_version": "1.1", "scheme": "http", "server": ("test", 80), "client": ("test", 1),
        }  # fmt: skip
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    def hang_up(self) -> None:
        """The client is gone."""
        self._gone.set()

    async def _receive(self) -> dict[str, Any]:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if self._gone.is_set():
            if self._tells:
                raise OSError("the client is gone")
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message.get("body"):
            self.parts.append(message["body"])


def events(text: str) -> list[Any]:
    """What a stream says; it ends with [DONE]."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def job(serving: Any, prompt: int = 3, new: int = 5, **options: Any) -> Any:
    """Continues a prompt of so many tokens."""
    return serving.ticket.Job(list(range(1, prompt + 1)), new, options)


async def read(ticket: Any) -> list[int]:
    """Token ids, of whatever jobs."""
    return [token.token_id async for _, token in ticket.tokens()]


def idle(engine: Any) -> bool:
    """Whether all that requests had was given back; looks the way requests go: wait, then run."""
    meters = engine.meters
    if meters.waiting or meters.active or meters.kv_reserved or meters.kv_used:
        return False
    return engine._batch.free_rows == engine.options.rows
