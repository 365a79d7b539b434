"""Measures against answers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from minicache.runtime.metrics import DocumentScore, kl_divergence, log_softmax, ratio_interval


def test_log_softmax_is_stable() -> None:
    np.testing.assert_allclose(log_softmax(np.zeros((1, 4), np.float32)), np.log(0.25))
    huge = log_softmax(np.array([1e30, 0.0], np.float32))
    assert huge[0] == 0.0 and huge[1] == pytest.approx(-1e30)
    assert log_softmax(np.array([-np.inf, 0.0], np.float32)).tolist() == [-np.inf, 0.0]


def test_kl_known_answers() -> None:
    half = np.log(np.array([0.5, 0.5]))
    skewed = np.log(np.array([0.25, 0.75]))
    assert kl_divergence(half, half) == 0.0
    assert kl_divergence(half, skewed) == pytest.approx(0.5 * np.log(4 / 3))
    certain = log_softmax(np.array([0.0, -np.inf]))
    assert kl_divergence(certain, certain) == 0.0
    assert kl_divergence(certain, half) == pytest.approx(np.log(2))
    assert kl_divergence(half, certain) == np.inf


def test_document_score() -> None:
    score = DocumentScore()
    original = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]]))
    exported = np.log(np.array([[0.25, 0.5, 0.25], [0.1, 0.2, 0.7]]))
    score.add(np.array([0, 2]), exported, original)
    assert score.tokens == 2 and score.agreed == 1
    assert score.loss_exported == pytest.approx(-np.log(0.25 * 0.7))
    assert score.loss_original == pytest.approx(-np.log(0.5 * 0.7))
    assert score.kl == pytest.approx(0.25 * np.log(2))


def test_interval_of_equal_documents_is_a_point() -> None:
    scores = [DocumentScore(10, 22.0, 20.0) for _ in range(5)]
    assert ratio_interval(scores) == pytest.approx((np.exp(0.2), np.exp(0.2)))
    assert ratio_interval(scores[:1]) is None


def test_interval_covers_the_ratio() -> None:
    random = np.random.default_rng(0)
    scores = [DocumentScore(100, 200.0 + extra, 200.0) for extra in random.normal(5.0, 3.0, 40)]
    interval = ratio_interval(scores)
    assert interval is not None
    low, high = interval
    # the mean of 40 documents has a standard error of 3 / sqrt(40) / 100 = 0.0047
    assert low < np.exp(0.05) < high
    assert 3 * 0.0047 < high - low < 5 * 0.0047
    assert ratio_interval(scores) == interval, "the same numbers give the same interval"
