"""How the engine of samples/03_serve_ray fails: one request, or all of them."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from tests.runtime.tiny_model import MAX_LENGTH, VOCABULARY
from tests.samples.serving import (
    Start,
    idle,
    job,
    read,
    until,
)


def test_an_error_in_a_step_fails_every_request_and_the_engine(serving: Any, start: Start) -> None:
    engine, gate = start(rows=1)

    async def run() -> None:
        gate.shut()
        tickets = [engine.submit([job(serving)]) for _ in range(3)]
        await until(lambda: engine.meters.active == 1)
        engine.check()
        gate.open(RuntimeError("the device is gone"))
        for ticket in tickets:
            with pytest.raises(
                serving.ticket.FailedError, match="RuntimeError: the device is gone"
            ):
                await read(ticket)
        with pytest.raises(serving.engine.EngineDownError, match="the device is gone"):
            engine.check()
        with pytest.raises(serving.engine.EngineDownError):
            engine.submit([job(serving)])
        assert engine.meters.outcomes == {"failed": 3}

    asyncio.run(run())


def test_a_request_that_breaks_the_batch_fails_with_all_others(
    serving: Any, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, gate = start(rows=2)

    async def run() -> None:
        gate.shut()
        first = engine.submit([job(serving)])
        await until(lambda: engine.meters.active == 1)

        def broken(*_: object, **__: object) -> int:
            raise ZeroDivisionError("in a tokenizer")

        monkeypatch.setattr(engine._batch, "add", broken)
        second = engine.submit([job(serving)])
        gate.open()
        for ticket in (first, second):
            with pytest.raises(serving.ticket.FailedError, match="ZeroDivisionError"):
                await asyncio.wait_for(read(ticket), 30)

    asyncio.run(run())


def test_what_the_batch_refuses_fails_alone(serving: Any, start: Start) -> None:
    engine, _ = start()

    async def run() -> None:
        wrong = engine.submit([serving.ticket.Job([VOCABULARY], 3)])
        long = engine.submit([job(serving, prompt=MAX_LENGTH + 1)])
        right = engine.submit([job(serving)])
        with pytest.raises(serving.ticket.RefusedError, match=f"token {VOCABULARY}"):
            await read(wrong)
        with pytest.raises(serving.ticket.RefusedError, match="do not fit"):
            await read(long)
        assert len(await read(right)) == 5
        engine.check()

    asyncio.run(run())


def test_logits_that_are_not_finite_fail_one_request(
    serving: Any, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, gate = start()

    async def run() -> None:
        gate.shut()
        with engine._changed:  # the worker sees both at once
            bad, good = (engine.submit([job(serving, prompt=length)]) for length in (3, 4))
        await until(lambda: engine.meters.active == 2)
        text = engine._batch._requests[0].text
        take = text.take
        text.take = lambda logits, **given: take(np.full_like(logits, np.nan), **given)
        gate.open()
        with pytest.raises(serving.ticket.FailedError, match="not finite"):
            await read(bad)
        assert len(await read(good)) == 5
        engine.check()
        await until(lambda: idle(engine))

    asyncio.run(run())


def test_a_step_that_hangs_is_unhealthy(
    serving: Any, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, gate = start()
    monkeypatch.setattr(serving.engine, "STALL_SECONDS", 0.05)

    async def run() -> None:
        gate.shut()
        ticket = engine.submit([job(serving)])
        await until(lambda: engine._step_began is not None)
        await asyncio.sleep(0.1)
        with pytest.raises(serving.engine.EngineDownError, match="step of the model"):
            engine.check()
        gate.open()
        await read(ticket)
        engine.check()

    asyncio.run(run())


def test_closing_fails_what_is_not_done(serving: Any, start: Start) -> None:
    engine, gate = start(rows=1)

    async def run() -> None:
        gate.shut()
        tickets = [engine.submit([job(serving)]) for _ in range(2)]
        await until(lambda: engine.meters.active == 1)
        gate.allow(1)
        closing = asyncio.to_thread(engine.close)
        task = asyncio.ensure_future(closing)
        await until(lambda: engine._down is not None)
        gate.open()
        await task
        for ticket in tickets:
            with pytest.raises(serving.ticket.FailedError, match="shutting down"):
                await read(ticket)

    asyncio.run(run())
