"""Sums by document: their means, their interval, and their way through a file."""

from __future__ import annotations

import json
import math

import pytest

from minicache.exporter.planner.measured_loss import MeasuredLoss
from minicache.runtime.metrics import DocumentScore, ratio_interval


@pytest.fixture
def loss() -> MeasuredLoss:
    return MeasuredLoss([10, 30, 20], [0.5, 0.7, 0.6], [0.2, -0.1, 0.5], [9, 25, 20])


def test_means_weigh_tokens_and_not_documents(loss: MeasuredLoss) -> None:
    assert loss.kl_mean == pytest.approx(1.8 / 60)
    assert loss.perplexity_ratio == pytest.approx(math.exp(0.6 / 60))
    assert loss.top1_agreement == 54 / 60


def test_the_interval_is_that_of_the_evaluation(loss: MeasuredLoss) -> None:
    """The bootstrap that judges the finished export."""
    scores = [
        DocumentScore(tokens, loss_exported=5.0 + extra, loss_original=5.0)
        for tokens, extra in zip(loss.tokens, loss.extra, strict=True)
    ]
    assert loss.interval() == pytest.approx(ratio_interval(scores))
    low, high = loss.interval()
    assert low < loss.perplexity_ratio < high


def test_one_document_bounds_nothing() -> None:
    assert MeasuredLoss([10], [0.1], [0.1], [9]).interval() == (0.0, math.inf)
    assert MeasuredLoss().kl_mean == 0.0


def test_it_survives_json_unchanged(loss: MeasuredLoss) -> None:
    assert MeasuredLoss.from_dict(json.loads(json.dumps(loss.to_dict()))) == loss
    with pytest.raises(KeyError):
        MeasuredLoss.from_dict({"tokens": [1]})
