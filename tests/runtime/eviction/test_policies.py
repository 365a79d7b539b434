"""Sessions that evict compute what a plain model does that forgets the same tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from minicache.runtime.session import Session
from tests.runtime.conftest import OpenTiny
from tests.runtime.eviction.plain_model import PlainModel, Worth, heaviest, newest, pooled
from tests.runtime.session_text import assert_close, text

SPARE = 64
Plain = Callable[..., PlainModel]


@pytest.fixture
def plain(tiny_folder: Callable[..., Path]) -> Plain:
    return lambda evict, observes=0: PlainModel(tiny_folder(evict=evict), observes)


def read(model: PlainModel, tokens: list[int], budget: int, sinks: int, worth: Worth) -> np.ndarray:
    """A call of a model that is cut back when it is 64 tokens beyond its budget."""
    if max(len(kept) for kept in model.layers) + len(tokens) > budget + SPARE:
        model.evict(budget, sinks, worth)
    return model.forward(tokens)


def generate(session: Session, logits: np.ndarray, count: int) -> tuple[list[int], np.ndarray]:
    """The likeliest tokens, one after the other, and the logits after each."""
    tokens, all_logits = [], []
    for _ in range(count):
        tokens.append(int(np.argmax(logits)))
        logits = session.forward([[tokens[-1]]])[0, 0]
        all_logits.append(logits)
    return tokens, np.stack(all_logits)


@pytest.mark.parametrize(
    ("evict", "budget", "sinks", "observes", "worth"),
    [
        ("streaming:3+41", 44, 3, 0, newest),
        ("streaming:0+48", 48, 0, 0, newest),
        ("h2o:48", 48, 0, -1, heaviest(48)),
    ],
    ids=["streaming", "no-sinks", "h2o"],
)
def test_a_running_policy_equals_the_plain_one_token_for_token(
    open_tiny: OpenTiny, plain: Plain, evict: str, budget: int, sinks: int, observes: int,
    worth: Worth,
) -> None:  # fmt: skip
    """A prompt in chunks, then greedy decoding: more tokens than the row has slots."""
    session = open_tiny(model={"evict": evict}, cache_tokens=144)
    model, ids = plain(evict, observes), text(length=120)[0].tolist()
    assert session.cache_tensors()["past_minicache.0.exact_key"].shape[3] == 144
    for start in range(0, 120, 24):
        mine = session.forward([ids[start : start + 24]])[0]
        assert_close(mine, read(model, ids[start : start + 24], budget, sinks, worth))
    tokens, logits = generate(session, mine[-1], 40)
    assert session.lengths.tolist() == [160]
    held = 160 - session.cache_tensors()["past_minicache.0.evicted"][0, -1]
    assert budget - 16 < held <= budget + SPARE
    for token, after in zip(tokens, logits, strict=True):
        expected = read(model, [token], budget, sinks, worth)[0]
        assert_close(after, expected)
        assert np.argmax(after) == np.argmax(expected)


@pytest.mark.parametrize("chunk", [7, 50, 200])
def test_snapkv_equals_the_plain_one_token_for_token(
    open_tiny: OpenTiny, plain: Plain, chunk: int
) -> None:
    """What the end of the prompt attends to stays; decoding evicts nothing more."""
    session, model = open_tiny(model={"evict": "snapkv:60"}), plain("snapkv:60", observes=32)
    ids = text(length=120)[0].tolist()
    logits = session.prefill([ids], chunk=chunk)[0]
    model.forward(ids[:88])
    model.forget()
    expected = model.forward(ids[88:])[-1]
    assert_close(logits, expected)
    model.evict(60, 0, pooled(32, side=3))
    kept = [len(tokens) for tokens in model.layers]
    evicted = [int(session.cache_tensors()[f"past_minicache.{g}.evicted"][0, -1]) for g in (0, 1)]
    assert evicted == [120 - count for count in kept] == [64, 64]
    tokens, after = generate(session, logits, 30)
    for token, mine in zip(tokens, after, strict=True):
        expected = model.forward([token])[0]
        assert_close(mine, expected)
        assert np.argmax(mine) == np.argmax(expected)
    assert int(session.cache_tensors()["past_minicache.0.evicted"][0, -1]) == 64


def test_layers_choose_on_their_own(open_tiny: OpenTiny, plain: Plain) -> None:
    """Two exact layers keep different tokens."""
    session = open_tiny(model={"evict": "h2o:48"})
    ids = text(length=140)
    for start in range(0, 140, 35):
        session.forward(ids[:, start : start + 35])
    model = plain("h2o:48", -1)
    for start in range(0, 140, 35):
        read(model, ids[0, start : start + 35].tolist(), 48, 0, heaviest(48))
    places = [[token.position for token in kept] for kept in model.layers]
    assert places[0] != places[1]
    for group, kept in enumerate(model.layers):
        keys = session.cache_tensors()[f"past_minicache.{group}.exact_key"][0, 0]
        expected = np.stack([token.key for token in kept], axis=1)
        assert_close(keys[:, : len(kept)], expected)
