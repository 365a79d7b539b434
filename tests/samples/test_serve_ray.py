"""samples/03_serve_ray on Ray Serve, asked by the OpenAI client over loopback.

Needs the sample's requirements: `make serve-check` installs them and runs this. Every request must
complete or fail with a clear status, whatever happens; nothing may hang, and rows come back.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from minicache.runtime import Session
from tests.samples.serving import SAMPLE

pytestmark = pytest.mark.slow

openai = pytest.importorskip("openai", reason="needs Ray and openai: make serve-check")
pytest.importorskip("ray.serve", reason="needs Ray and openai: make serve-check")

httpx = sys.modules[openai.DefaultHttpxClient.__mro__[1].__module__.split(".")[0]]
PATIENCE = 120.0  # seconds until a request counts as hung, on a busy machine
ROWS, WAITING = 2, 40
LONG: dict[str, Any] = {"model": "tiny", "prompt": "Once", "max_tokens": 150, "temperature": 0}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def started(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Starts the server; again when Ray gives up on a busy machine, as it does after 30 s."""
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    for _ in range(3):
        with log.open("w") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
        while process.poll() is None:
            if "/v1\n" in log.read_text():
                return process
            time.sleep(1)
        if "timed out during startup" not in log.read_text():
            break
    raise AssertionError(log.read_text())


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """Starts serve.py; its address and process."""
    port, log = free_port(), tmp_path_factory.mktemp("ray") / "serve.log"
    command: list[Any] = [sys.executable, SAMPLE / "serve.py", folder, "--model", "tiny"]
    command += ["--rows", ROWS, "--waiting", WAITING, "--port", port]
    process = started([str(word) for word in command], log)
    try:
        yield f"http://127.0.0.1:{port}", process.pid
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0, log.read_text()
    finally:
        process.kill()


def client(address: str) -> Any:
    return openai.AsyncOpenAI(
        base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=PATIENCE
    )


def metric(address: str, name: str) -> float:
    """Sum over all labels, of the replica that answers."""
    lines = httpx.get(f"{address}/metrics", timeout=PATIENCE).text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name}{{"))


def wait_until_idle(address: str) -> None:
    for _ in range(600):
        if not metric(address, "minicache_rows_active") + metric(
            address, "minicache_requests_waiting"
        ):
            assert metric(address, "minicache_kv_bytes_reserved") == 0
            return
        time.sleep(0.1)
    raise AssertionError("rows were not given back")


async def stream(asking: Any, **given: Any) -> str:
    """The text of a streamed completion; it must have a finish reason."""
    text, reason = "", None
    async for piece in await asking.completions.create(**LONG | given, stream=True):
        text += piece.choices[0].text
        reason = piece.choices[0].finish_reason or reason
    assert reason is not None
    return text


async def outcome(request: Coroutine[Any, Any, Any]) -> str:
    """How a request ends; a lost one has no finish reason, a hung one no end."""
    try:
        await asyncio.wait_for(request, PATIENCE)
    except openai.APIStatusError as error:
        return str(error.status_code)
    except (openai.APIError, httpx.TransportError):
        return "broken off"
    except AssertionError:
        return "lost"
    except asyncio.TimeoutError:
        return "hung"
    return "completed"


def test_concurrent_streams_say_what_a_session_says(server: tuple[str, int], folder: Path) -> None:
    prompts = [f"Prompt {number}" for number in range(12)]
    with Session(folder, threads=1) as session:
        alone = ["".join(t.text for t in session.generate(prompt, 40)) for prompt in prompts]

    async def run() -> list[str]:
        async with client(server[0]) as asking:
            return await asyncio.gather(
                *(stream(asking, prompt=prompt, max_tokens=40) for prompt in prompts)
            )

    assert asyncio.run(run()) == alone
    wait_until_idle(server[0])


def test_chat_whole_and_streamed(server: tuple[str, int]) -> None:
    given: dict[str, Any] = {
        "model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12,
        "temperature": 0,
    }  # fmt: skip

    async def run() -> tuple[str, str, list[str]]:
        async with client(server[0]) as asking:
            whole = await asking.chat.completions.create(**given)
            pieces = [
                piece async for piece in await asking.chat.completions.create(**given, stream=True)
            ]
            models = [model.id async for model in asking.models.list()]
            text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
            return whole.choices[0].message.content, text, models

    whole, streamed, models = asyncio.run(run())
    assert whole == streamed and models == ["tiny"]


def test_refusals_reach_the_client(server: tuple[str, int]) -> None:
    async def code(asking: Any, **given: Any) -> tuple[int, str]:
        with pytest.raises(openai.APIStatusError) as found:
            await asking.completions.create(**LONG | given)
        return found.value.status_code, found.value.code

    async def run() -> None:
        async with client(server[0]) as asking:
            assert await code(asking, prompt="a" * 500) == (400, "context_length_exceeded")
            assert await code(asking, extra_body={"foo": 1}) == (400, "unknown_parameter")
            assert await code(asking, model="other") == (404, "model_not_found")
            assert await code(asking, temperature=9) == (400, "invalid_value")

    asyncio.run(run())
    answer = httpx.post(f"{server[0]}/v1/completions", content=b'{"model":', timeout=PATIENCE)
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "invalid_json"
    assert httpx.get(f"{server[0]}/health", timeout=PATIENCE).json() == {"status": "ok"}


def test_clients_that_hang_up_give_their_rows_back(server: tuple[str, int]) -> None:
    async def run() -> None:
        async with client(server[0]) as asking:
            requests = [asyncio.ensure_future(stream(asking)) for _ in range(ROWS + 30)]
            first = await asking.completions.create(**LONG, stream=True)
            await anext(aiter(first))
            for request in requests:
                request.cancel()
            await first.close()
            await asyncio.gather(*requests, return_exceptions=True)

    before = metric(server[0], "minicache_requests_total")
    asyncio.run(run())
    wait_until_idle(server[0])
    ended = metric(server[0], "minicache_requests_total") - before
    assert 0 < ended <= ROWS + 31  # some may not even have been queued


def test_more_than_fits_is_told_at_once(server: tuple[str, int]) -> None:
    async def run() -> Counter[str]:
        async with client(server[0]) as asking:
            requests = (outcome(stream(asking)) for _ in range(ROWS + WAITING + 30))
            return Counter(await asyncio.gather(*requests))

    found = asyncio.run(run())
    assert set(found) <= {"completed", "429", "503"} and found["completed"] >= ROWS + WAITING
    assert found["429"] > 0, found
    wait_until_idle(server[0])


def replicas(server: int) -> list[int]:
    """Processes of replicas among the descendants of a process."""
    parents, found = {}, []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            parents[int(folder.name)] = int(state[1])
            if b"ServeReplica" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:  # it has ended
            continue

    def descends(process: int) -> bool:
        while process not in (0, server):
            process = parents.get(process, 0)
        return process == server

    return [process for process in found if descends(process)]


def test_a_replica_killed_under_load_is_replaced(server: tuple[str, int]) -> None:
    async def ask_again(asking: Any, end: float, found: Counter[str]) -> None:
        while time.monotonic() < end:
            found[await outcome(stream(asking, max_tokens=100))] += 1

    async def run() -> Counter[str]:
        found: Counter[str] = Counter()
        async with client(server[0]) as asking:
            end = time.monotonic() + 12
            load = [asyncio.ensure_future(ask_again(asking, end, found)) for _ in range(16)]
            await asyncio.sleep(3)
            (process,) = replicas(server[1])
            os.kill(process, signal.SIGKILL)
            await asyncio.gather(*load)
            for _ in range(60):
                if await outcome(stream(asking)) == "completed":
                    return found
                await asyncio.sleep(1)
        raise AssertionError(f"no new replica; {found}")

    found = asyncio.run(run())
    print(dict(found))
    assert not {"lost", "hung"} & set(found), found
    assert found["completed"] > 0 and len(found) > 1, found
    wait_until_idle(server[0])
