"""What the parity proof has compared, for the report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ParityCase:
    """One comparison.

    Attributes:
        name: e.g. ``batch 1`` or ``ragged row 2``.
        tokens: tokens compared.
        max_difference: largest absolute difference of a logit.
        max_logit: largest absolute logit of the original.
        top1_agreement: share of tokens with the same most likely next token.
        worst_gap: where they differ, how much the original prefers its own choice, at most.
    """

    name: str
    tokens: int
    max_difference: float
    max_logit: float
    top1_agreement: float
    worst_gap: float


@dataclass(frozen=True)
class ParityReport:
    """All comparisons and the tolerance they were held to."""

    dtype: str
    tolerance: float
    cases: list[ParityCase] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def max_relative_difference(self) -> float:
        """Largest difference relative to the case's largest logit."""
        return max(case.max_difference / (case.max_logit or 1.0) for case in self.cases)

    @property
    def top1_agreement(self) -> float:
        """Share of all tokens with the same most likely next token."""
        agreed = sum(case.top1_agreement * case.tokens for case in self.cases)
        return agreed / sum(case.tokens for case in self.cases)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the report."""
        return {
            "dtype": self.dtype,
            "tolerance": self.tolerance,
            "max_relative_difference": self.max_relative_difference,
            "top1_agreement": self.top1_agreement,
            "cases": [vars(case) for case in self.cases],
            "notes": list(self.notes),
        }
