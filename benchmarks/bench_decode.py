"""How fast is one decode step of a model at T cached tokens, exported against original?

Baselines are the original graph, driven every way that its form allows:

- ``original, IOBinding``: each step's presents bound as the next step's pasts without a copy on our
  side (the graph itself concatenates);
- of a GroupQueryAttention graph also ``original, shared buffers``: past and present are one buffer;
- and ``original, int8 cache``: the same with int8 caches and a scale per channel.

All read the same tokens first; then rounds of steps alternate between them, so that a busy machine
disturbs all alike. With ``--text`` the tokens are those of a text, and the quality of the timed
steps is printed beside their speed.

    python benchmarks/bench_decode.py MODEL OUT --tokens 4096 --threads 1 --text TEXT
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.cpu.agreement import Agreement
from benchmarks.cpu.decoders import (
    Forward,
    Ids,
    describe,
    exported_decoders,
    original_decoders,
)
from benchmarks.cpu.rounds import ratio
from benchmarks.held_out import pick_documents, split_text
from minicache.exporter.io import find_model_file
from minicache.runtime.huge_pages import collapse_pages
from minicache.runtime.spread import Spread
from minicache.runtime.tokenizer import TextTokenizer

CHUNK = 512


@dataclass
class Timed:
    """One model's steps: medians of wall and CPU seconds per round, and their logits."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    logits: list[np.ndarray] = field(default_factory=list)

    def round(self, forward: Forward, ids: Ids) -> None:
        """Feeds tokens one by one."""
        times = []
        for token in ids.T:
            wall, cpu = time.perf_counter(), time.process_time()
            self.logits.append(forward(token[None])[0, 0])
            times.append((time.perf_counter() - wall, time.process_time() - cpu))
        walls, cpus = zip(*times, strict=True)
        self.wall.append(statistics.median(walls))
        self.cpu.append(statistics.median(cpus))


@dataclass(frozen=True)
class Row:
    """One model's result; ratios are to the baselines, by name."""

    name: str
    wall_ms: Spread
    cpu_ms: Spread
    tokens_per_s: float
    wall_ratio: dict[str, Spread]
    cpu_ratio: dict[str, Spread]
    agreement: Agreement | None


def tokens_of(given: argparse.Namespace, count: int) -> Ids:
    """``[1, count]``: a document of the text, or random ones without a text.

    Raises:
        TextError: the text is too short.
    """
    if given.text is None:
        vocabulary = min(1000, describe(given.original).vocab_size)
        return np.random.default_rng(0).integers(10, vocabulary, (1, count))
    tokenizer = TextTokenizer(find_model_file(given.original).parent)
    text = split_text(given.text, given.skip_fraction)[1]
    return np.array(pick_documents(text, tokenizer, count, 1), np.int64)


def rows_of(times: dict[str, Timed], baselines: Sequence[str], targets: Ids | None) -> list[Row]:
    """Ratios to every baseline, in wall and CPU time; the first one is the judge of logits."""
    judge = np.stack(times[baselines[0]].logits)
    rows = []
    for name, mine in times.items():
        others = [base for base in baselines if base != name]
        agreement = None
        if targets is not None and name != baselines[0]:
            agreement = Agreement.of(judge, np.stack(mine.logits), targets[0])
        cpu = Spread.of(mine.cpu)
        rows.append(
            Row(
                name, Spread.of(mine.wall).scaled(1e3), cpu.scaled(1e3), 1 / cpu.median,
                {base: ratio(times[base].wall, mine.wall) for base in others},
                {base: ratio(times[base].cpu, mine.cpu) for base in others},
                agreement,
            )
        )  # fmt: skip
    return rows


def print_table(rows: Sequence[Row], baselines: Sequence[str], threads: int) -> None:
    """In Markdown; one thread is judged by its CPU time, several by the wall clock."""
    kind = "CPU" if threads == 1 else "wall"
    columns = ["", "wall ms", "CPU ms", "tokens per CPU s", *(f"{kind}, x {b}" for b in baselines)]
    if any(row.agreement for row in rows):
        columns += ["KL", "top-1", "perplexity"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        cells = [row.name, f"{row.wall_ms.median:.2f}", f"{row.cpu_ms.median:.2f}"]
        cells.append(f"{row.tokens_per_s:.1f}")
        ratios = row.cpu_ratio if threads == 1 else row.wall_ratio
        for base in baselines:
            found = ratios.get(base)
            text = f"{found.median:.2f} ({found.p25:.2f}-{found.p75:.2f})" if found else ""
            cells.append(text)
        if row.agreement:
            a = row.agreement
            cells += [f"{a.kl:.5f}", f"{a.top1:.1%}", f"x {a.perplexity_ratio:.4f}"]
        print(f"| {' | '.join(cells)} |")


def main(words: Sequence[str] | None = None) -> None:
    """Prints the medians and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("original", type=Path, help="the stock model.onnx or its folder")
    parser.add_argument("exported", type=Path, nargs="+", help="folders minicache-export wrote")
    parser.add_argument("--tokens", type=int, default=2048, help="cached tokens T")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="steps per round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--text", type=Path, help="read this; without it: random tokens")
    parser.add_argument("--skip-fraction", type=float, default=0.5, help="of the text, that "
                        "calibrations may have seen")  # fmt: skip
    parser.add_argument("--huge-pages", action="store_true", help="weights and baselines' caches "
                        "in pages of 2 MB; the exports' caches keep small ones")  # fmt: skip
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(words)

    warm = 2
    count = given.tokens + warm + given.rounds * given.steps
    ids = tokens_of(given, count + 1)
    decoders = original_decoders(given.original, ids, count, given.threads, CHUNK)
    baselines = list(decoders)
    decoders |= exported_decoders(given.exported, count, given.threads)
    for forward in decoders.values():
        for start in range(0, given.tokens, CHUNK):
            forward(ids[:, start : min(start + CHUNK, given.tokens)])
        Timed().round(forward, ids[:, given.tokens : given.tokens + warm])
    if given.huge_pages:
        print(f"{collapse_pages() >> 20} MiB in pages of 2 MB")
    times = {name: Timed() for name in decoders}
    for turn in range(given.rounds):
        begin = given.tokens + warm + turn * given.steps
        for name, forward in decoders.items():
            times[name].round(forward, ids[:, begin : begin + given.steps])
    first = given.tokens + warm + 1
    rows = rows_of(times, baselines, ids[:, first : count + 1] if given.text else None)
    print(f"decode step at T = {given.tokens}, {given.threads} thread(s), medians of rounds\n")
    print_table(rows, baselines, given.threads)
    if given.json:
        result = {"tokens": given.tokens, "threads": given.threads}
        report = result | {"rows": [asdict(row) for row in rows]}
        given.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
