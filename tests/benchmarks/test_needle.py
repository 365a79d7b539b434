"""Needle cases, and how answers are judged."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from benchmarks.needle import NeedleCase, make_case
from benchmarks.row_store import RowStore
from minicache.runtime.errors import TextError
from minicache.runtime.tokenizer import TextTokenizer
from tests.byte_tokenizer import byte_tokenizer

CONTEXT = 700


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return TextTokenizer(folder)


@pytest.fixture
def bench_needle(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    # A script, which imports what lies beside it.
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return importlib.import_module("bench_needle")


def cases(tokenizer: TextTokenizer, count: int = 8) -> list[NeedleCase]:
    return [make_case("filler " * 1000, tokenizer, CONTEXT, seed) for seed in range(count)]


def test_a_case_holds_both_facts_and_asks_for_one(tokenizer: TextTokenizer) -> None:
    made = cases(tokenizer)
    assert made == cases(tokenizer), "seeds decide"
    for case in made:
        assert len(case.text) + len(case.question) + len(case.answer) == CONTEXT
        text, question, answer = (
            tokenizer.decode(ids) for ids in (case.text, case.question, case.answer)
        )
        name = question.split("the secret code for ")[-1].removesuffix(" is")
        assert text.count("Remember this") == 2
        assert f"the secret code for {name} is{answer}." in text
        assert text.index(f"Remember this: the secret code for {name}") / len(text) == (
            pytest.approx(case.depth, abs=0.01)
        )
    assert len({tuple(case.answer) for case in made}) == len(made)
    assert min(case.depth for case in made) < 0.45 < max(case.depth for case in made)


def test_short_fillers_are_refused(tokenizer: TextTokenizer) -> None:
    with pytest.raises(TextError, match="5600 are needed"):
        make_case("filler " * 10, tokenizer, CONTEXT, 0)
    with pytest.raises(TextError, match="cannot be filled"):
        make_case("filler " * 1000, tokenizer, 100, 0)


class Knows:
    """Predicts the next token of a case, but for some of the answer."""

    def __init__(self, case: NeedleCase, wrong: int | None = None) -> None:
        self.next = [*(case.text + case.question + case.answer)[1:], 0]
        if wrong is not None:
            self.next[len(case.text + case.question) - 1 + wrong] = 1
        self.read, self.calls = 0, list[int]()

    def start(self, ids: np.ndarray) -> np.ndarray:
        self.read = 0
        return self.forward(ids[None])[0, -1:]

    def forward(self, input_ids: np.ndarray) -> np.ndarray:
        count = input_ids.shape[1]
        logits = np.zeros((1, count, 256), np.float32)
        logits[0, np.arange(count), self.next[self.read : self.read + count]] = 20
        self.read += count
        self.calls.append(count)
        return logits


def test_answers_are_read_from_the_cache_and_judged(
    tokenizer: TextTokenizer, bench_needle: ModuleType
) -> None:
    case = cases(tokenizer, 1)[0]
    model = Knows(case)
    row = bench_needle.ask(model, case, 16)
    assert row["exact"] and row["tokens"] == 7 and row["loss"] < 1e-4
    assert model.calls[0] == len(case.text) and max(model.calls[1:]) == 16
    assert model.calls[-6:] == [1] * 6 and sum(model.calls) == CONTEXT - 1
    for wrong in (0, 6):
        row = bench_needle.ask(Knows(case, wrong), case, 16)
        assert not row["exact"] and row["loss"] == pytest.approx(20, rel=1e-3)


def test_what_the_original_misses_is_left_out(
    tokenizer: TextTokenizer, bench_needle: ModuleType
) -> None:
    first, second = cases(tokenizer, 2)
    store, settings = RowStore(None), {"original": "o", "chunk": 8}

    def measure(case: NeedleCase, original: Knows) -> dict[str, list[dict[str, object]]]:
        other = SimpleNamespace(name="other", identity="x", model=Knows(case, 3))
        found: dict[str, list[dict[str, object]]] = bench_needle.measure(
            [case], original, [other], store, settings
        )
        return found

    answered = measure(first, Knows(first))
    assert [len(rows) for rows in answered.values()] == [1, 1]
    assert not answered["other"][0]["exact"]
    assert [len(rows) for rows in measure(second, Knows(second, 1)).values()] == [0, 0]
    # Known results are not measured again.
    assert measure(first, Knows(first, 1)) == answered
