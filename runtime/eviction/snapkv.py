"""SnapKV (arXiv:2404.14469): what the end of the prompt attends to stays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.runtime.eviction.policy import HeldTokens


@dataclass(frozen=True)
class SnapKV:
    """Keeps the tokens that the last queries of the prompt attend to, and their neighbours.

    The paper chooses per head; here the layers and heads of a merge group share codes, and choose
    together.

    Attributes:
        budget: tokens of a row that stay, the observing ones included.
        observes: last queries of the prompt, whose tokens always stay.
        pool: neighbours over which the mass is pooled (its maximum), odd: what stands around a
            token that matters is kept with it.
    """

    budget: int
    observes: int = 32
    pool: int = 7
    sinks: int = 0
    spare: int | None = None

    @property
    def text(self) -> str:
        """As ``--evict`` takes it."""
        return f"snapkv:{self.budget}"

    def worth(self, tokens: HeldTokens) -> npt.NDArray[Any]:
        """The largest mass among a token's neighbours."""
        assert tokens.mass is not None
        side = self.pool // 2
        padded = np.pad(tokens.mass, side, constant_values=-np.inf)
        pooled = np.lib.stride_tricks.sliding_window_view(padded, self.pool).max(axis=-1)
        pooled[max(tokens.count - self.observes, 0) :] = np.inf
        return np.asarray(pooled)
