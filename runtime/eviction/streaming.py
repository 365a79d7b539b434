"""StreamingLLM (arXiv:2309.17453): the first tokens and the last ones stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.runtime.eviction.policy import HeldTokens


@dataclass(frozen=True)
class Streaming:
    """Keeps attention sinks and a window of recent tokens.

    Unlike the paper's, keys keep the positions of the original text: what is stored is rotated
    already.

    Attributes:
        sinks: first tokens that stay.
        window: last tokens that stay.
    """

    sinks: int
    window: int
    observes: int = 0
    spare: int | None = 64

    @property
    def text(self) -> str:
        """As ``--evict`` takes it."""
        return f"streaming:{self.sinks}+{self.window}"

    @property
    def budget(self) -> int:
        """Tokens of a row that stay."""
        return self.sinks + self.window

    def worth(self, tokens: HeldTokens) -> npt.NDArray[Any]:
        """The newer the better."""
        return np.arange(tokens.count)
