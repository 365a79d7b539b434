"""Load test: many streams at once through the real OpenAI client, and what became of them.

    python load.py --model smollm2 --streams 32 --seconds 120

Every stream asks again as soon as its answer has come, with prompts and limits of random lengths. A
request is lost when it ends without a finish reason, hung when nothing comes for ``--patience``
seconds. At the end the server must have all rows and bytes back.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import openai

TEXT = (
    "the cache of a decoder grows with every token that it reads and what it keeps of them decides "
    "how many texts fit side by side into the memory of a small machine"
)
WORDS = re.findall(r"\w+", TEXT)


@dataclass
class Record:
    """What happened.

    Attributes:
        outcomes: requests by how they ended.
        errors: what was said of those that failed, each once.
        first: seconds to the first token of each request.
        between: seconds between two tokens of a request.
        tokens: received.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    tokens: int = 0


async def one_request(
    client: openai.AsyncOpenAI, given: argparse.Namespace, draw: random.Random, record: Record
) -> None:
    """Asks once, and reads the stream to its end."""
    prompt = " ".join(draw.choices(WORDS, k=draw.randint(8, given.prompt_words)))
    limit = draw.randint(8, given.max_tokens)
    last = begun = time.perf_counter()
    reason, tokens = None, 0
    try:
        stream = await asyncio.wait_for(
            client.completions.create(
                model=given.model,
                prompt=prompt,
                max_tokens=limit,
                temperature=given.temperature,
                stream=True,
            ),
            given.patience,
        )
        pieces = aiter(stream)
        while True:
            piece = await asyncio.wait_for(anext(pieces, None), given.patience)
            if piece is None:
                break
            now = time.perf_counter()
            if tokens == 0:
                record.first.append(now - begun)
            else:
                record.between.append(now - last)
            last, tokens = now, tokens + 1
            reason = piece.choices[0].finish_reason or reason
        record.outcomes["completed" if reason else "lost"] += 1
    except asyncio.TimeoutError:
        record.outcomes["hung"] += 1
    except openai.APIError as error:
        status = getattr(error, "status_code", None)
        record.outcomes[f"refused with {status}" if status else "failed"] += 1
        record.errors[str(error)] += 1
    record.tokens += tokens


async def one_stream(
    client: openai.AsyncOpenAI, given: argparse.Namespace, number: int, end: float, record: Record
) -> None:
    """Asks again and again."""
    draw = random.Random(number)
    while time.perf_counter() < end:
        await one_request(client, given, draw, record)


async def metrics(client: openai.AsyncOpenAI, url: str) -> dict[str, float]:
    """Values without histograms and outcomes, of the replica that answers."""
    text = (await client._client.get(url.removesuffix("/v1") + "/metrics")).text
    found = re.findall(r"^(\w+)(?:\{replica=[^},]*\})? (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def percentile(values: list[float], share: float) -> float:
    """Of at least one value; NaN of none."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else float("nan")


async def run(given: argparse.Namespace) -> dict[str, object]:
    """Runs the test; returns the numbers."""
    record = Record()
    async with openai.AsyncOpenAI(base_url=given.url, api_key="none", max_retries=0) as client:
        await client.models.retrieve(given.model)
        before = await metrics(client, given.url)
        begun = time.perf_counter()
        streams = range(given.streams)
        end = begun + given.seconds
        await asyncio.gather(*(one_stream(client, given, n, end, record) for n in streams))
        seconds = time.perf_counter() - begun
        after = await metrics(client, given.url)
    changes = {name: value - before.get(name, 0.0) for name, value in after.items()}
    cpu = changes["process_cpu_seconds_total"]
    steps = changes["minicache_steps_total"]
    left = {name: after[f"minicache_{name}"] for name in ("rows_active", "kv_bytes_reserved")}
    milliseconds = {
        name: {f"p{100 * share:.0f}": 1000 * percentile(values, share) for share in (0.5, 0.99)}
        for name, values in (("first_token_ms", record.first), ("between_ms", record.between))
    }
    return {
        "streams": given.streams,
        "seconds": seconds,
        "outcomes": dict(record.outcomes),
        "errors": dict(record.errors),
        "tokens": record.tokens,
        "tokens_per_second": record.tokens / seconds,
        "tokens_per_cpu_second": record.tokens / cpu,  # of the replica: others may use the machine
        "tokens_per_step": changes["minicache_generated_tokens_total"] / steps,
        "resident_mb": after["process_resident_memory_bytes"] / 1e6,
        **milliseconds,
        "left_over": left,
    }


def main() -> int:
    """Prints a table; returns 1 when a request was lost or hung, or a row was not given back."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", required=True)
    parser.add_argument("--streams", type=int, default=32, help="at once")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--prompt-words", type=int, default=100, help="at most")
    parser.add_argument("--max-tokens", type=int, default=96, help="of an answer, at most")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--patience", type=float, default=120.0, help="seconds without any token")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    try:
        result = asyncio.run(run(given))
    except openai.APIError as error:  # before the load: it would count as an outcome
        print(f"load.py: {given.url} does not serve ({error}); start serve.py", file=sys.stderr)
        return 2
    for name, value in result.items():
        print(f"| {name.replace('_', ' ')} | {json.dumps(value)} |")
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")
    outcomes, left = result["outcomes"], result["left_over"]
    assert isinstance(outcomes, dict) and isinstance(left, dict)
    return int(set(outcomes) != {"completed"} or any(left.values()))


if __name__ == "__main__":
    sys.exit(main())
