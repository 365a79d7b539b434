"""Sampling against answers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minicache.runtime.errors import SessionError
from minicache.runtime.sampling import (
    Sampler,
    SamplingOptions,
    min_p_count,
    top_k_tokens,
    top_p_count,
)

# probabilities 0.1, 0.4, 0.2, 0.3
LOGITS = np.log(np.array([0.1, 0.4, 0.2, 0.3], np.float32))


def counts(options: SamplingOptions, draws: int = 4000) -> np.ndarray:
    sampler = Sampler(options)
    return np.bincount([sampler.choose(LOGITS) for _ in range(draws)], minlength=4) / draws


def test_greedy_takes_the_largest_and_the_first_of_equals() -> None:
    assert Sampler(SamplingOptions()).choose(LOGITS) == 1
    assert Sampler(SamplingOptions()).choose(np.array([1, 3, 3], np.float32)) == 1


def test_frequencies_follow_the_probabilities() -> None:
    # 4 standard deviations of a share among 4000 draws: 0.032
    np.testing.assert_allclose(
        counts(SamplingOptions(1.0, seed=1)), [0.1, 0.4, 0.2, 0.3], atol=0.032
    )


def test_temperature_sharpens() -> None:
    # temperature 0.5 squares the probabilities: 1, 16, 4, 9 of 30
    expected = np.array([1, 16, 4, 9]) / 30
    np.testing.assert_allclose(counts(SamplingOptions(0.5, seed=1)), expected, atol=0.032)
    assert Sampler(SamplingOptions(1e-30, seed=1)).choose(LOGITS) == 1


def test_top_k_and_top_p_cut_the_tail() -> None:
    np.testing.assert_allclose(
        counts(SamplingOptions(1.0, top_k=2, seed=1)), [0, 4 / 7, 0, 3 / 7], atol=0.032
    )
    # 0.4 + 0.3 reach 0.65, 0.4 alone does not
    np.testing.assert_allclose(
        counts(SamplingOptions(1.0, top_p=0.65, seed=1)), [0, 4 / 7, 0, 3 / 7], atol=0.032
    )
    assert counts(SamplingOptions(1.0, top_p=0.001, seed=1))[1] == 1.0


def test_top_k_tokens_are_ordered() -> None:
    assert top_k_tokens(LOGITS.astype(np.float64), 3).tolist() == [1, 3, 2]
    assert top_k_tokens(LOGITS.astype(np.float64), 0).tolist() == [1, 3, 2, 0]
    assert top_k_tokens(np.array([2.0, 5.0, 5.0, 5.0]), 2).tolist() == [1, 2]
    assert top_k_tokens(np.array([2.0, 5.0]), 9).tolist() == [1, 0]


def test_top_p_counts() -> None:
    descending = np.array([0.5, 0.25, 0.25])
    assert [top_p_count(descending, p) for p in (0.2, 0.5, 0.6, 0.75, 1.0)] == [1, 1, 2, 2, 3]


def test_min_p_counts() -> None:
    """Section 3 of arXiv:2407.01082: at least p_base times the largest probability."""
    descending = np.array([0.5, 0.25, 0.125, 0.125])
    assert [min_p_count(descending, p) for p in (0.0, 0.25, 0.26, 0.5, 0.51, 1.0)] == [
        4, 4, 2, 2, 1, 1,
    ]  # fmt: skip
    np.testing.assert_allclose(
        counts(SamplingOptions(1.0, min_p=0.6, seed=1)), [0, 4 / 7, 0, 3 / 7], atol=0.032
    )


def softmax(scores: np.ndarray) -> np.ndarray:
    exponents = np.exp(scores - scores.max())
    return exponents / exponents.sum()


def by_definition(logits: np.ndarray, seen: list[int], options: SamplingOptions) -> np.ndarray:
    """Probabilities [V], step by step over the whole vocabulary.

    Hand-written from the definitions in Hugging Face transformers' logits_process.py
    (RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper,
    MinPLogitsWarper), in the order in which ``generate`` applies them.
    """
    scores = logits.astype(np.float64)
    for token in set(seen):
        penalty = options.repetition_penalty
        scores[token] *= penalty if scores[token] < 0 else 1 / penalty
    scores = scores / options.temperature
    if options.top_k:
        scores[scores < np.sort(scores)[-min(options.top_k, len(scores))]] = -np.inf
    if options.top_p < 1:
        ascending = np.argsort(scores, kind="stable")
        gone = np.cumsum(softmax(scores)[ascending]) <= 1 - options.top_p
        gone[-1] = False
        scores[ascending[gone]] = -np.inf
    if options.min_p > 0:
        probability = softmax(scores)
        scores[probability < options.min_p * probability.max()] = -np.inf
    return softmax(scores)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_all_steps_together_follow_their_definitions(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 40))
    seed = data.draw(st.integers(0, 1000))
    logits = np.random.default_rng(seed).normal(0, 3, count).astype(np.float32)  # no two are equal
    seen = data.draw(st.lists(st.integers(0, count - 1), max_size=6))
    options = SamplingOptions(
        temperature=data.draw(st.floats(0.1, 3)),
        top_k=data.draw(st.integers(0, 50)),
        top_p=data.draw(st.floats(0.01, 1)),
        min_p=data.draw(st.floats(0, 1)),
        repetition_penalty=data.draw(st.floats(0.5, 2)),
    )
    tokens, probability = Sampler(options).distribution(logits, seen)
    found = np.zeros(count)
    found[tokens] = probability / probability.sum()
    np.testing.assert_allclose(found, by_definition(logits, seen, options), atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    spread=st.sampled_from([0.01, 1.0, 5.0]),
    top_k=st.sampled_from([0, 0, 40, 300]),
    top_p=st.sampled_from([1.0, 0.3, 0.95, 0.9999]),
    min_p=st.sampled_from([0.0, 0.0, 0.001, 0.9]),
)
def test_a_draw_is_one_of_the_whole_distribution(
    seed: int, spread: float, top_k: int, top_p: float, min_p: float
) -> None:
    """Whether a look at the likeliest tokens was enough or not."""
    logits = np.random.default_rng(seed).normal(0, spread, 6000).astype(np.float32)
    options = SamplingOptions(temperature=0.9, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    tokens, probability = Sampler(options).distribution(logits)
    mark = np.random.default_rng(seed).random() * probability.sum()
    place = int(np.searchsorted(np.cumsum(probability), mark, side="right"))
    assert Sampler(options).choose(logits) == tokens[min(place, len(tokens) - 1)]


def test_repetition_penalty_works_on_both_signs() -> None:
    logits = np.array([2.0, 1.5, -1.0, -1.5], np.float32)
    sampler = Sampler(SamplingOptions(repetition_penalty=2.0))
    assert sampler.choose(logits, [0]) == 1  # 2.0 / 2 < 1.5
    assert sampler.choose(np.array([-1.0, -1.5], np.float32), [0, 0]) == 1  # -1.0 * 2 < -1.5
    assert sampler.choose(logits, []) == 0
    np.testing.assert_array_equal(logits, [2.0, 1.5, -1.0, -1.5])


def test_seeds_repeat_and_differ() -> None:
    def draw(seed: int) -> list[int]:
        sampler = Sampler(SamplingOptions(1.0, seed=seed))
        return [sampler.choose(LOGITS) for _ in range(30)]

    assert draw(3) == draw(3) != draw(4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature is -1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0.0}, "top_p is 0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"min_p": 1.5}, "min_p is 1.5"),
        ({"min_p": float("nan")}, "min_p is nan"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_options_out_of_range(options: dict[str, float], message: str) -> None:
    with pytest.raises(SessionError, match=message):
        SamplingOptions(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [[np.nan, 1.0], [-np.inf, -np.inf], [np.inf, 0.0]])
def test_useless_logits_are_refused(bad: list[float]) -> None:
    with pytest.raises(SessionError, match="minicache evaluate"):
        Sampler(SamplingOptions()).choose(np.array(bad, np.float32))
