"""What a codec costs on a text, measured against the exact model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minicache.runtime.metrics import DocumentScore, ratio_interval


@dataclass
class MeasuredLoss:
    """Sums by document.

    Attributes:
        tokens: scored tokens of each document.
        kl: sum of KL(exact || coded) over them, in nats.
        extra: sum of the increase of the negative log likelihood, in nats.
        agreed: tokens at which both rank the same token first.
    """

    tokens: list[int] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    extra: list[float] = field(default_factory=list)
    agreed: list[int] = field(default_factory=list)

    @property
    def kl_mean(self) -> float:
        """Nats per token."""
        return sum(self.kl) / max(sum(self.tokens), 1)

    @property
    def perplexity_ratio(self) -> float:
        """Coded / exact."""
        return float(np.exp(sum(self.extra) / max(sum(self.tokens), 1)))

    @property
    def top1_agreement(self) -> float:
        """Share of the tokens."""
        return sum(self.agreed) / max(sum(self.tokens), 1)

    def interval(self) -> tuple[float, float]:
        """95 % interval of the perplexity ratio; without bounds for fewer than two documents."""
        scores = [
            DocumentScore(tokens, extra)
            for tokens, extra in zip(self.tokens, self.extra, strict=True)
        ]
        return ratio_interval(scores) or (0.0, float("inf"))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data that ``from_dict`` reads."""
        return {name: list(getattr(self, name)) for name in ("tokens", "kl", "extra", "agreed")}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> MeasuredLoss:
        """Reads what ``to_dict`` gave.

        Raises:
            KeyError: a field is missing.
            TypeError: a field is no list of numbers.
            ValueError: a field is no list of numbers, or they are not equally long.
        """
        tokens, agreed = ([int(x) for x in data[name]] for name in ("tokens", "agreed"))
        kl, extra = ([float(x) for x in data[name]] for name in ("kl", "extra"))
        if not tokens or not len(tokens) == len(kl) == len(extra) == len(agreed):
            raise ValueError("a measurement needs a value of each kind for every document")
        return MeasuredLoss(tokens, kl, extra, agreed)
