"""How fast an export decodes and how much memory its cache takes, beside its original.

Use it as::

    result = bench("out/", "model/", contexts=(512, 2048))
    print(result.to_dict())
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from minicache.runtime import checks
from minicache.runtime.contestants import CHUNK, Contestant, Ids, open_contestants
from minicache.runtime.corpus import read_documents
from minicache.runtime.errors import SessionError
from minicache.runtime.manifest import Manifest
from minicache.runtime.progress import progress
from minicache.runtime.spread import Spread
from minicache.runtime.tokenizer import FILE_NAME, TextTokenizer

CONTEXTS = (512, 2048, 8192)
GIB = 1 << 30
WARM = 2  # steps before those that are timed
MOST_READINGS, READING_SECONDS = 3, 20.0  # prompts that are short are read several times


@dataclass(frozen=True)
class BenchRow:
    """One way to run one model at one context.

    Attributes:
        name: of the contestant.
        context: tokens in the cache after the last step.
        prompt_tokens: tokens that were read before the first step.
        first_token_seconds: from an empty cache to the logits of the prompt's last token.
        step_seconds: of one decode step; medians of rounds.
        kv_bytes: cache of one sequence of ``context`` tokens, between two calls.
        kv_bytes_in_step: likewise, of all that must exist at once within a call.
        rows_in_budget: sequences whose caches fit into the budget within a call.
    """

    name: str
    context: int
    prompt_tokens: int
    first_token_seconds: Spread
    step_seconds: Spread
    kv_bytes: int
    kv_bytes_in_step: int
    rows_in_budget: int

    @property
    def tokens_per_second(self) -> float:
        """Decode steps of one sequence per second."""
        return 1 / self.step_seconds.median


@dataclass(frozen=True)
class BenchResult:
    """All rows, context by context, the export first.

    Attributes:
        rows: what was measured.
        budget: bytes that ``rows_in_budget`` fit into.
        threads: CPU threads; None: ONNX Runtime's choice.
        rounds: of steps, which the contestants took in turns.
        steps: per round.
    """

    rows: tuple[BenchRow, ...]
    budget: int
    threads: int | None
    rounds: int
    steps: int

    def of_context(self, context: int) -> list[BenchRow]:
        """Rows of one context."""
        return [row for row in self.rows if row.context == context]

    @property
    def contexts(self) -> list[int]:
        """In the order in which they were measured."""
        return list(dict.fromkeys(row.context for row in self.rows))

    def to_dict(self) -> dict[str, object]:
        """Returns the numbers, speeds included, as JSON-ready data."""
        rows = [
            {**dataclasses.asdict(row), "tokens_per_second": row.tokens_per_second}
            for row in self.rows
        ]
        return {**dataclasses.asdict(self), "chunk": CHUNK, "rows": rows}


def bench(
    folder: Path | str,
    baseline: Path | str | None = None,
    *,
    contexts: Sequence[int] = CONTEXTS,
    budget: int = GIB,
    threads: int | None = None,
    rounds: int = 5,
    steps: int = 8,
    text: Path | None = None,
    quiet: bool = False,
) -> BenchResult:
    """Measures an export and its original; they take turns, so that other load disturbs all alike.

    Args:
        folder: what ``minicache-export`` wrote.
        baseline: the model it was made from; None: the export alone.
        contexts: tokens in the cache after the last step, one measurement each.
        budget: bytes for caches.
        threads: CPU threads; None: ONNX Runtime's choice.
        rounds: of decode steps.
        steps: decode steps of a round.
        text: UTF-8 text to read; None: the built-in one, or random tokens without a tokenizer.
        quiet: no progress.

    Raises:
        SessionError: a number is out of range, or the baseline is another model.
        MiniCacheError: a model cannot be opened or a text cannot be read.
    """
    folder = Path(folder)
    manifest = Manifest.load(folder)
    for name, value in (("budget", budget), ("rounds", rounds), ("steps", steps)):
        checks.whole_number(name, value)
    timed = WARM + rounds * steps
    _check_contexts(contexts, timed, manifest.max_sequence_length)
    ids = _tokens(folder, manifest, text, max(contexts))
    original = None if baseline is None else Path(baseline)
    contestants = open_contestants(folder, original, max(contexts), threads)
    rows: list[BenchRow] = []
    for context in contexts:
        with progress(f"context {context}", MOST_READINGS + rounds, quiet=quiet) as bar:
            turns = _Turns(contestants, ids[:context], context - timed)
            while turns.reads_again():
                turns.read()
                bar.advance()
            turns.step(WARM, timed=False)
            for _ in range(rounds):
                turns.step(steps)
                bar.advance()
        rows += turns.rows(context, budget)
    return BenchResult(tuple(rows), budget, threads, rounds, steps)


class _Turns:
    """One context: prompts and steps of all contestants in turns, and the seconds they took."""

    def __init__(self, contestants: Sequence[Contestant], ids: Ids, prompt: int) -> None:
        self._contestants, self._ids, self._prompt = contestants, ids, prompt
        self._place = prompt
        self._reading: dict[str, list[float]] = {each.name: [] for each in contestants}
        self._stepping: dict[str, list[float]] = {each.name: [] for each in contestants}
        self._turn = 0

    def _order(self) -> Sequence[Contestant]:
        """Every other turn backwards: who comes after whom matters to caches and clocks."""
        self._turn += 1
        return self._contestants if self._turn % 2 else self._contestants[::-1]

    def reads_again(self) -> bool:
        """Whether there is time to read the prompt once more."""
        done = [sum(times) for times in self._reading.values()]
        count = len(next(iter(self._reading.values())))
        return count == 0 or (count < MOST_READINGS and max(done) < READING_SECONDS)

    def read(self) -> None:
        """Every contestant reads the prompt."""
        for each in self._order():
            began = time.perf_counter()
            each.read(self._ids[: self._prompt])
            self._reading[each.name].append(time.perf_counter() - began)

    def step(self, count: int, *, timed: bool = True) -> None:
        """Every contestant makes ``count`` steps with the same tokens."""
        tokens = self._ids[self._place : self._place + count].tolist()
        self._place += count
        for each in self._order():
            times = []
            for token in tokens:
                began = time.perf_counter()
                each.step(token)
                times.append(time.perf_counter() - began)
            if timed:
                self._stepping[each.name].append(float(np.median(times)))

    def rows(self, context: int, budget: int) -> list[BenchRow]:
        """The results."""
        return [
            BenchRow(
                each.name,
                context,
                self._prompt,
                Spread.of(self._reading[each.name]),
                Spread.of(self._stepping[each.name]),
                each.kv_bytes(context),
                each.kv_bytes_in_step(context),
                budget // each.kv_bytes_in_step(context),
            )
            for each in self._contestants
        ]


def _check_contexts(contexts: Sequence[int], timed: int, most: int) -> None:
    if not contexts:
        raise SessionError("no context is given; give one or more numbers of tokens")
    for context in contexts:
        checks.whole_number("context", context)
        if context <= timed:
            raise SessionError(
                f"context is {context}, the {timed} decode steps leave nothing of it to a prompt; "
                "give more, or fewer rounds or steps"
            )
        if context > most:
            raise SessionError(
                f"context is {context}, the model was exported for up to {most}; give less, or "
                f"export with --max-sequence-length {context}"
            )


def _tokens(folder: Path, manifest: Manifest, text: Path | None, count: int) -> Ids:
    """Token ids [count], from the beginning of the text again where it is too short."""
    if text is None and not (folder / FILE_NAME).is_file():
        return np.random.default_rng(0).integers(0, manifest.vocab_size, count)
    tokenizer = TextTokenizer(folder, manifest.bos_token_id)
    documents = read_documents(text, tokenizer, manifest.vocab_size)
    whole = np.array([token for document in documents for token in document], np.int64)
    return np.resize(whole, count)
