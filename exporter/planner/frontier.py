"""The table of what a search measured: how much each ratio costs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from minicache.exporter.planner.candidate import Candidate
from minicache.exporter.planner.measured_loss import MeasuredLoss


@dataclass(frozen=True)
class FrontierPoint:
    """One measured plan.

    Attributes:
        structure: group size and heads, in words.
        bits_per_element: of the coded part, magnitudes included.
        ratio: to fp16, coded part.
        bytes_per_token: of the codes of all layers.
        bytes_read: codes read per cached token in a decode step.
        predicted_kl: what the search expected, nats per token.
        kl: measured.
        perplexity_ratio: measured, to the exact model.
        perplexity_ratio_low: lower end of its 95 % interval.
        perplexity_ratio_high: upper end.
        top1_agreement: share of tokens.
        chosen: this is the plan of the export.
    """

    structure: str
    bits_per_element: float
    ratio: float
    bytes_per_token: int
    bytes_read: int
    predicted_kl: float
    kl: float
    perplexity_ratio: float
    perplexity_ratio_low: float
    perplexity_ratio_high: float
    top1_agreement: float
    chosen: bool = False

    @staticmethod
    def of(candidate: Candidate, loss: MeasuredLoss) -> FrontierPoint:
        """Joins what was planned and what was measured."""
        low, high = loss.interval()
        return FrontierPoint(
            structure=candidate.structure.name,
            bits_per_element=round(candidate.bits_per_element, 4),
            ratio=round(candidate.ratio, 4),
            bytes_per_token=candidate.bytes_per_token,
            bytes_read=candidate.bytes_read,
            predicted_kl=candidate.predicted,
            kl=loss.kl_mean,
            perplexity_ratio=loss.perplexity_ratio,
            perplexity_ratio_low=low,
            perplexity_ratio_high=high,
            top1_agreement=loss.top1_agreement,
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return dataclasses.asdict(self)
