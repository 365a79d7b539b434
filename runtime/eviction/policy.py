"""What an eviction policy is: how much each token of a row is worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class HeldTokens:
    """What a policy sees of one row of one merge group: its tokens in order, evicted ones left out.

    Attributes:
        count: tokens that the row holds.
        mass: [count] fp32, the attention that each got; None where the policy observes nothing.
    """

    count: int
    mass: npt.NDArray[np.float32] | None = None


class Policy(Protocol):
    """Chooses by worth; what may go at all, and in which numbers, is not its part.

    A row is cut back to the budget when it is ``spare`` tokens beyond it, so that moving is paid
    once for several tokens; without ``spare``, at the end of a prompt and when the row is full.
    """

    @property
    def text(self) -> str:
        """As ``--evict`` takes it."""

    @property
    def budget(self) -> int:
        """Tokens of a row that stay."""

    @property
    def sinks(self) -> int:
        """First tokens that always stay."""

    @property
    def observes(self) -> int:
        """Queries per call whose attention is added up; 0 none, -1 all."""

    @property
    def spare(self) -> int | None:
        """Tokens beyond the budget at which a row is cut back; None: see above."""

    def worth(self, tokens: HeldTokens) -> npt.NDArray[Any]:
        """Worth [count] of each token; those of the least go first, older ones before newer."""
