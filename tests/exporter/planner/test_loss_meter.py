"""The loss meter agrees with the plain definitions of ``runtime.metrics`` on a tiny model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from minicache.exporter.baselines.exact_cache import ExactCache
from minicache.exporter.baselines.simulated_cache import SimulatedCache
from minicache.exporter.planner import loss_meter
from minicache.exporter.planner.loss_meter import LossMeter
from minicache.exporter.planner.measured_loss import MeasuredLoss
from minicache.runtime import open_model
from minicache.runtime.metrics import DocumentScore
from minicache.runtime.progress import Step
from minicache.runtime.session import Session
from tests.exporter.scaled_codec import Scaled
from tests.runtime.reference_graph import ReferenceGraph
from tests.runtime.tiny_model import VOCABULARY, write_tiny_model

PREFILL, SCORED, CHUNK = 20, 17, 4


class CountingStep(Step):
    def __init__(self) -> None:
        self.count = 0

    def advance(self, count: int = 1) -> None:
        self.count += count


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(open_model, "open_graph", ReferenceGraph)
    monkeypatch.setattr(loss_meter, "CHUNK", CHUNK)
    return write_tiny_model(tmp_path / "model", "exact")


@pytest.fixture
def documents() -> list[list[int]]:
    """Longer, shorter and as long as what is scored."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, VOCABULARY, size).tolist() for size in (60, 30, 38)]


@pytest.fixture
def meter(folder: Path, documents: list[list[int]]) -> LossMeter:
    return LossMeter(folder, documents, prefill=PREFILL, scored=SCORED)


def plain_scores(
    folder: Path, documents: list[list[int]], codec: Scaled, scored: int
) -> list[DocumentScore]:
    """Both models' logits side by side, and their log softmaxes in double precision."""
    with Session(folder, max_sequence_length=64) as session:
        cache = ExactCache(session)
        scores = []
        for document in documents:
            ids = np.array(document[: PREFILL + scored + 1])
            logits = []
            for used in (None, codec):
                simulation = SimulatedCache(cache, used)
                simulation.prefill(ids[:PREFILL])
                steps = range(PREFILL, len(ids) - 1, CHUNK)
                ends = [min(start + CHUNK, len(ids) - 1) for start in steps]
                parts = [
                    simulation.forward(ids[None, start:end])[0]
                    for start, end in zip(steps, ends, strict=True)
                ]
                logits.append(np.concatenate(parts))
            score = DocumentScore()
            score.add(ids[PREFILL + 1 :], logits[1], logits[0])
            scores.append(score)
    return scores


def assert_agrees(loss: MeasuredLoss, scores: list[DocumentScore], tolerance: float) -> None:
    assert loss.tokens == [score.tokens for score in scores]
    assert loss.agreed == [score.agreed for score in scores]
    for kl, extra, score in zip(loss.kl, loss.extra, scores, strict=True):
        assert kl == pytest.approx(score.kl, rel=tolerance, abs=1e-5 * score.tokens)
        expected = score.loss_exported - score.loss_original
        assert extra == pytest.approx(expected, rel=tolerance, abs=1e-5 * score.tokens)


@pytest.mark.parametrize("factor", [0.999, 0.5, 1.7])
def test_losses_are_those_of_the_definitions(
    folder: Path, documents: list[list[int]], meter: LossMeter, factor: float
) -> None:
    """KL and the rise of the negative log likelihood, document by document."""
    codec = Scaled(factor)
    (loss,) = meter.measure([codec], Step())
    assert sum(loss.tokens) == meter.tokens == SCORED + 9 + SCORED
    assert loss.kl_mean > 0
    assert_agrees(loss, plain_scores(folder, documents, codec, SCORED), 1e-5)


def test_small_losses_are_not_lost_in_rounding(
    folder: Path, documents: list[list[int]], meter: LossMeter
) -> None:
    """KL is quadratic in a small error: a tenth of the error costs a hundredth."""
    coarse, fine = meter.measure([Scaled(1.01), Scaled(1.001)], Step())
    assert coarse.kl_mean / fine.kl_mean == pytest.approx(100, rel=0.2)


@pytest.mark.parametrize("shift", [-12.0, 90.0, -300.0])
def test_logits_that_are_all_off_by_the_same_cost_nothing(
    folder: Path, meter: LossMeter, monkeypatch: pytest.MonkeyPatch, shift: float
) -> None:
    """Probabilities do not see it, so that only the rounding of the logits is left."""
    original = SimulatedCache.forward

    def shifted(self: SimulatedCache, ids: np.ndarray) -> np.ndarray:
        return original(self, ids) + np.float32(shift if self._codec else 0)

    monkeypatch.setattr(SimulatedCache, "forward", shifted)
    (loss,) = meter.measure([Scaled(1.0)], Step())
    np.testing.assert_allclose(loss.kl + loss.extra, 0.0, atol=1e-3)


def test_a_codec_that_changes_nothing_costs_exactly_nothing(meter: LossMeter) -> None:
    """And one that is measured before it leaves no trace."""
    _, loss = meter.measure([Scaled(0.5), Scaled(1.0)], Step())
    assert loss.kl == [0.0] * 3 and loss.extra == [0.0] * 3
    assert loss.top1_agreement == 1.0


def test_a_ruinous_codec_is_measured_too(
    folder: Path, documents: list[list[int]], meter: LossMeter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits that are off by hundreds give a large loss, and not infinity or NaN."""
    forward = Session.forward

    def loud(self: Session, *args: object, **named: object) -> np.ndarray:
        return 2000 * forward(self, *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Session, "forward", loud)
    codec = Scaled(-20.0)
    (loss,) = meter.measure([codec], Step())
    scores = plain_scores(folder, documents, codec, SCORED)
    assert max(score.kl for score in scores) > 100
    assert_agrees(loss, scores, 1e-4)


def test_fewer_scored_tokens_and_one_step_per_document_and_codec(
    folder: Path, documents: list[list[int]], meter: LossMeter
) -> None:
    step = CountingStep()
    losses = meter.measure([Scaled(0.5), Scaled(0.9)], step, 6)
    assert step.count == 6
    for loss, factor in zip(losses, (0.5, 0.9), strict=True):
        assert_agrees(loss, plain_scores(folder, documents, Scaled(factor), 6), 1e-5)
