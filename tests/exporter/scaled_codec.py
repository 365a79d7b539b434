"""A cache codec whose effect on a session is easy to tell: it multiplies what it codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minicache.exporter.baselines.cache_codec import Array, end_of_coded


@dataclass(frozen=True)
class Scaled:
    """Multiplies coded tokens by a factor; codes whole blocks only."""

    factor: float
    sinks: int = 2
    window: int = 5
    name: str = "scaled"
    bits_per_element: float = 32.0
    block: int = 1

    def coded_end(self, past: int) -> int:
        return end_of_coded(past, self.sinks, self.window, block=self.block)

    def rewrite(
        self, keys_LHkTD: Sequence[Array], values_LHkTD: Sequence[Array], start: int
    ) -> tuple[list[Array], list[Array]]:
        return [self.factor * key for key in keys_LHkTD], [self.factor * v for v in values_LHkTD]

    def cache_bytes(self, context: int) -> int:
        return 0
