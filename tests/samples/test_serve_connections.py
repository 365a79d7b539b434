"""Clients of samples/03_serve_ray that hang up, and those that find it full or broken."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.samples.serving import (
    CHAT,
    COMPLETION,
    PATHS,
    Call,
    idle,
    until,
)


@pytest.mark.parametrize("version", ["2.3", "2.4"])
@pytest.mark.parametrize("kind", PATHS)
def test_hanging_up_in_a_stream_gives_the_row_back(served: Any, kind: str, version: str) -> None:
    given = (COMPLETION if kind == "completions" else CHAT) | {"stream": True, "max_tokens": 100}

    async def run() -> None:
        served.gate.shut()
        call = Call(served.app, PATHS[kind], given, version)
        served.gate.allow(4)  # the prompt and three steps
        await until(lambda: len(call.parts) >= 4)
        assert call.status == 200
        call.hang_up()
        served.gate.open()
        await asyncio.wait([call.task], timeout=30)
        await until(lambda: idle(served))
        assert served.meters.outcomes == {"cancelled": 1} and served.meters.tokens < 100

    asyncio.run(run())


@pytest.mark.parametrize("stream", [False, True])
def test_hanging_up_before_the_first_token_gives_the_row_back(served: Any, stream: bool) -> None:
    given = COMPLETION | {"stream": stream, "max_tokens": 100}

    async def run() -> None:
        served.gate.shut()
        calls = [Call(served.app, PATHS["completions"], given) for _ in range(3)]
        await until(lambda: served.meters.active + served.meters.waiting == 3)
        for call in calls:
            call.hang_up()
        await asyncio.wait([call.task for call in calls], timeout=30)
        served.gate.open()
        await until(lambda: idle(served))
        assert served.meters.outcomes == {"cancelled": 3}

    asyncio.run(run())


def test_too_many_requests_are_told_to_come_again(served: Any) -> None:
    async def run() -> None:
        served.gate.shut()
        calls = [Call(served.app, PATHS["completions"], COMPLETION) for _ in range(2 + 3)]
        await until(lambda: served.meters.active + served.meters.waiting == 5)
        late = Call(served.app, PATHS["completions"], COMPLETION)
        await asyncio.wait_for(late.task, 30)
        assert late.status == 429
        assert json.loads(late.parts[0])["error"]["code"] == "queue_full"
        served.gate.open()
        await asyncio.wait([call.task for call in calls], timeout=30)
        assert [call.status for call in calls] == [200] * 5

    asyncio.run(run())


def test_a_failing_engine_answers_500_or_ends_the_stream_with_an_error(served: Any) -> None:
    streamed = COMPLETION | {"stream": True, "max_tokens": 100}

    async def run() -> None:
        served.gate.shut()
        begun = Call(served.app, PATHS["completions"], streamed)
        served.gate.allow(3)
        await until(lambda: len(begun.parts) == 3)
        others = [Call(served.app, PATHS["completions"], given) for given in (streamed, COMPLETION)]
        await until(lambda: served.meters.active + served.meters.waiting == 3)
        served.gate.open(RuntimeError("the device is gone"))
        await asyncio.wait([begun.task, *(call.task for call in others)], timeout=30)
        for call in others:
            assert call.status == 500 and b"the device is gone" in call.parts[0]
        assert begun.status == 200, "it was said before"
        error = json.loads(begun.parts[-1].removeprefix(b"data: "))["error"]
        assert error["code"] == "engine_failed" and "the device is gone" in error["message"]

    asyncio.run(run())
    health = served.client.get("/health")
    assert health.status_code == 503 and "the device is gone" in health.json()["error"]["message"]
    answer = served.client.post(PATHS["completions"], json=COMPLETION)
    assert answer.status_code == 503 and answer.json()["error"]["type"] == "server_error"
