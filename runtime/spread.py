"""Median and quartiles of measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    p25: float
    median: float
    p75: float

    @staticmethod
    def of(samples: Sequence[float]) -> Spread:
        """Of at least one sample."""
        return Spread(*(float(sample) for sample in np.percentile(samples, (25, 50, 75))))

    def scaled(self, factor: float) -> Spread:
        """In another unit."""
        return Spread(self.p25 * factor, self.median * factor, self.p75 * factor)
