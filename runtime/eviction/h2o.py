"""H2O (arXiv:2306.14048): the tokens that got most attention so far stay, and the recent ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.runtime.eviction.policy import HeldTokens


@dataclass(frozen=True)
class H2O:
    """Keeps heavy hitters in one half of the budget, and recent tokens in the other.

    Attributes:
        budget: tokens of a row that stay.
    """

    budget: int
    observes: int = -1
    sinks: int = 0
    spare: int | None = 64

    @property
    def text(self) -> str:
        """As ``--evict`` takes it."""
        return f"h2o:{self.budget}"

    def worth(self, tokens: HeldTokens) -> npt.NDArray[Any]:
        """The mass of a token; the recent half of the budget is beyond price."""
        assert tokens.mass is not None
        worth = tokens.mass.astype(np.float64)
        worth[max(tokens.count - self.budget // 2, 0) :] = np.inf
        return worth
