"""Retention: which dissimilar tokens keep their full vectors, as the user writes it."""

from __future__ import annotations

from dataclasses import dataclass

from minicache.runtime.errors import PlanError


@dataclass(frozen=True)
class Retention:
    """Which dissimilar tokens keep full vectors (docs/operator.md, Retention).

    Attributes:
        policy: one of ``schemas.RETENTIONS``.
        value: threshold (cosine), gamma of ``minmax``, or fraction of the capacity for ``budget``.
        capacity: side-buffer size as a fraction of the capacity C.
        scope: how heads vote, one of ``schemas.RETENTION_SCOPES``.
    """

    policy: str = "none"
    value: float = 0.0
    capacity: float = 0.05
    scope: str = "mean"

    @staticmethod
    def parse(text: str, capacity: float | None = None, scope: str = "mean") -> Retention:
        """Reads ``none``, ``threshold:0.9``, ``minmax:0.05`` or ``budget:0.05``.

        Raises:
            PlanError: another policy, or a value out of range.
        """
        policy, _, number = text.partition(":")
        defaults = {"none": 0.0, "threshold": 0.9, "minmax": 0.05, "budget": 0.05}
        if policy not in defaults:
            raise PlanError(
                f"retention {text!r} is unknown; use none, threshold:COSINE, minmax:GAMMA "
                "or budget:FRACTION"
            )
        try:
            value = float(number) if number else defaults[policy]
        except ValueError as error:
            raise PlanError(f"retention {text!r}: {number!r} is not a number") from error
        low = -1.0 if policy == "threshold" else 0.0
        if not low <= value <= 1.0:
            raise PlanError(f"retention {text!r}: {value:g} is not within {low:g}..1")
        if policy == "budget":
            if capacity is not None and capacity != value:
                raise PlanError("budget:FRACTION is the capacity; leave out --retention-capacity")
            capacity = value
        capacity = 0.05 if capacity is None else capacity
        if not 0.0 < capacity <= 1.0:
            what = f"retention {text!r}" if policy == "budget" else "--retention-capacity"
            raise PlanError(f"{what}: {capacity:g} is not more than 0 and at most 1")
        return Retention(policy, value, capacity, scope)
