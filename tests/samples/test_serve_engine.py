"""The engine of samples/03_serve_ray: rows, bytes, queue, cancelled requests."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minicache.runtime import Session
from tests.runtime.tiny_model import MAX_LENGTH, VOCABULARY
from tests.samples.serving import (
    Start,
    idle,
    job,
    read,
    until,
)

TOKENS = st.integers(0, VOCABULARY - 1)
REQUESTS = st.lists(
    st.tuples(
        st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40), st.integers(1, 12)
    ),
    min_size=1,
    max_size=6,
)


@given(requests=REQUESTS)
@settings(max_examples=8)
def test_side_by_side_gives_what_single_runs_give(
    serving: Any, folder: Path, requests: list[tuple[list[int], int]]
) -> None:
    with Session(folder, threads=1) as session:
        alone = [
            [token.token_id for token in session.generate(prompt, new)] for prompt, new in requests
        ]
    engine = serving.engine.Engine(folder, serving.sizes.EngineOptions(rows=3, threads=1))

    async def together() -> list[list[int]]:
        jobs = [serving.ticket.Job(prompt, new) for prompt, new in requests]
        return await asyncio.gather(*(read(engine.submit([one])) for one in jobs))

    try:
        assert asyncio.run(together()) == alone
        assert idle(engine)
    finally:
        engine.close()


def test_jobs_of_one_request_come_with_their_number(serving: Any, start: Start) -> None:
    engine, _ = start()

    async def run() -> None:
        found: dict[int, list[int]] = {0: [], 1: [], 2: []}
        ticket = engine.submit([job(serving, new=new) for new in (2, 4, 6)])
        async for index, token in ticket.tokens():
            found[index].append(token.token_id)
        assert [len(tokens) for tokens in found.values()] == [2, 4, 6]
        assert found[2][:2] == found[0]

    asyncio.run(run())


def test_the_queue_is_bounded_and_takes_all_jobs_or_none(serving: Any, start: Start) -> None:
    engine, gate = start(rows=1, waiting=2)

    async def run() -> None:
        gate.shut()
        first = engine.submit([job(serving)])
        await until(lambda: engine.meters.active == 1)
        second = engine.submit([job(serving)])
        with pytest.raises(serving.engine.QueueFullError, match="1 requests are running"):
            engine.submit([job(serving), job(serving)])
        third = engine.submit([job(serving)])
        with pytest.raises(serving.engine.QueueFullError):
            engine.submit([job(serving)])
        assert engine.meters.waiting == 2
        gate.open()
        for ticket in (first, second, third):
            assert len(await read(ticket)) == 5
        assert engine.meters.outcomes == {"length": 3, "queue_full": 2} and idle(engine)

    asyncio.run(run())


def test_admission_keeps_to_the_budget_of_bytes(
    serving: Any, start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving.engine, "GAUGE_SECONDS", 0.0)
    with Session(folder) as session:
        need = session.row_bytes(8)
    engine, gate = start(rows=4, kv_bytes=2 * need + need // 2)

    async def run() -> None:
        gate.shut()
        with engine._changed:  # the worker sees all at once
            tickets = [engine.submit([job(serving, prompt=3, new=5)]) for _ in range(4)]
        await until(lambda: engine.meters.active == 2)
        gate.allow(3)  # two prompts and a decode step
        await until(lambda: engine.meters.steps == 3)
        assert engine.meters.active == 2 and engine.meters.waiting == 2
        assert 0 < engine.meters.kv_used <= engine.meters.kv_reserved == 2 * need
        gate.open()
        assert len({tuple(await read(ticket)) for ticket in tickets}) == 1
        assert idle(engine)

    asyncio.run(run())


@given(share=st.floats(0.02, 1.2))
def test_the_context_is_the_longest_request_that_the_budget_holds(
    serving: Any, folder: Path, share: float
) -> None:
    with Session(folder) as session:
        budget = int(share * session.row_bytes(session.capacity))
        try:
            context = serving.sizes.context_within(session, budget)
        except Exception as error:
            assert session.row_bytes(1) > budget and "one token takes" in str(error)
            return
        assert session.row_bytes(context) <= budget
        assert context == MAX_LENGTH or session.row_bytes(context + 1) > budget


@pytest.mark.parametrize("when", ["waiting", "reading", "decoding"])
def test_a_cancelled_request_gives_everything_back(serving: Any, start: Start, when: str) -> None:
    engine, gate = start(rows=1, chunk=4)

    async def run() -> None:
        gate.shut()
        other = engine.submit([job(serving)]) if when == "waiting" else None
        ticket = engine.submit([job(serving, prompt=10, new=100)])
        gate.allow({"waiting": 0, "reading": 1, "decoding": 5}[when])
        steps = {"waiting": 0, "reading": 1, "decoding": 5}[when]
        await until(lambda: engine.meters.steps == steps and engine.meters.active == 1)
        ticket.cancel()
        ticket.cancel()  # twice is once
        gate.open()
        if other is not None:
            assert len(await read(other)) == 5
        await until(lambda: idle(engine))
        assert engine.meters.outcomes["cancelled"] == 1
        assert len(await read(engine.submit([job(serving)]))) == 5

    asyncio.run(run())


def test_a_cancelled_request_of_several_jobs_frees_all_of_them(serving: Any, start: Start) -> None:
    engine, gate = start(rows=2)

    async def run() -> None:
        gate.shut()
        ticket = engine.submit([job(serving, new=50)] * 5)
        await until(lambda: engine.meters.active == 2)
        ticket.cancel()
        gate.open()
        await until(lambda: idle(engine))
        assert engine.meters.outcomes == {"cancelled": 5}

    asyncio.run(run())


def test_a_request_cancelled_on_its_way_to_a_row_gives_it_back(
    serving: Any, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = start(rows=1)
    add, tickets, counted = engine._batch.add, [], []

    def cancel_and_add(*given: Any, **options: Any) -> int:
        if tickets:
            tickets.pop().cancel()
        counted.append((engine.meters.active, engine.meters.waiting))
        return int(add(*given, **options))

    async def run() -> None:
        monkeypatch.setattr(engine._batch, "add", cancel_and_add)
        with engine._changed:
            tickets.append(engine.submit([job(serving, new=100)]))
        await until(lambda: engine.meters.outcomes["cancelled"] == 1)
        await until(lambda: idle(engine))
        assert len(await read(engine.submit([job(serving)]))) == 5
        assert counted == [(1, 0)] * 2  # never out of sight

    asyncio.run(run())
