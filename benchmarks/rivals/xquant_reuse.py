"""The other XQuant (arXiv:2510.11236): the upper layer of a pair reads the lower layer's codes.

Keys are quantised per channel over groups of 32 tokens and values per token in groups of 32
channels, as KIVI does. In a pair of layers only the lower one keeps codes; the upper one keeps its
own zero points and scales, and reads the lower layer's codes through them. At 2 bits and less both
ends of a group's range are moved inwards (the paper's data-free calibration; the shares are those
of the authors' code).

``residual_bits`` adds codes for what the upper layer then still lacks, which the paper does not
have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from benchmarks.rivals.counting import bytes_of_context
from benchmarks.rivals.uniform import Uniform, check_bits, check_value_groups, group_bits, quantise
from minicache.exporter.baselines.cache_codec import (
    check_exact_part,
    check_whole_blocks,
    end_of_coded,
)
from minicache.exporter.baselines.cache_shape import CacheShape

Array = npt.NDArray[Any]
Shared = Literal["keys and values", "values"]

GROUP = 32
BITS = (1, 2, 3, 4, 8)
SHRINK = {1: 1 / 6, 2: 0.045}


@dataclass(frozen=True)
class XQuantReuse:
    """Codes of one layer for two.

    Attributes:
        bits: of the codes: 1, 2, 3, 4 or 8.
        shape: of the model's cache.
        shared: whose codes the upper layers read.
        residual_bits: codes of what is lacking; 0: none.
        sinks: first tokens, kept exact; 0 in the paper.
        window: recent tokens, kept exact; the paper has up to 128.
        name: for tables; empty: ``xquant-reuse-int{bits}``.
    """

    bits: int
    shape: CacheShape
    shared: Shared = "keys and values"
    residual_bits: int = 0
    sinks: int = 0
    window: int = 64
    name: str = ""

    def __post_init__(self) -> None:
        check_bits(self.bits, BITS)
        check_bits(self.residual_bits, (0, *BITS))
        check_exact_part(self.sinks, self.window)
        check_value_groups(self.shape.head_dim, GROUP)
        if not self.name:
            object.__setattr__(self, "name", f"xquant-reuse-int{self.bits}")

    @property
    def bits_per_element(self) -> float:
        """Mean over layers, keys and values; zero points and scales included."""
        alone = group_bits(self.bits, GROUP)
        upper = group_bits(0, GROUP)
        if self.residual_bits:
            upper += group_bits(self.residual_bits, GROUP)
        share = self.shape.layers // 2 / self.shape.layers
        pairs = share * upper + (1 - share) * alone
        return pairs if self.shared == "keys and values" else (pairs + alone) / 2

    def coded_end(self, past: int) -> int:
        """All whole groups before the window."""
        return end_of_coded(past, self.sinks, self.window, GROUP)

    def encode(
        self, keys_LHkTD: Sequence[Array], values_LHkTD: Sequence[Array]
    ) -> tuple[list[list[Uniform]], list[list[Uniform]]]:
        """What is held of keys and of values, by layer: codes or scales, and residual codes."""
        # Tokens last, so that a group of a key channel is contiguous in the last axis.
        by_channel = [np.swapaxes(key, 1, 2) for key in keys_LHkTD]
        keys = self._encode(by_channel, shared=self.shared == "keys and values")
        return keys, self._encode(values_LHkTD, shared=True)

    def _encode(self, vectors: Sequence[Array], *, shared: bool) -> list[list[Uniform]]:
        shrink = SHRINK.get(self.bits, 0.0)
        held: list[list[Uniform]] = []
        for layer, x in enumerate(vectors):
            own = quantise(x, self.bits, GROUP, shrink)
            if not shared or layer % 2 == 0:
                held.append([own])
                continue
            parts = [own.with_codes(held[layer - 1][0])]
            if self.residual_bits:
                parts.append(quantise(x - parts[0].read(), self.residual_bits, GROUP))
            held.append(parts)
        return held

    def rewrite(
        self, keys_LHkTD: Sequence[Array], values_LHkTD: Sequence[Array], start: int
    ) -> tuple[list[Array], list[Array]]:
        """Quantises whole groups; see ``CacheCodec.rewrite``.

        Raises:
            PlanError: the tokens are not whole groups.
        """
        check_whole_blocks(self.name, GROUP, keys_LHkTD[0].shape[1], start, self.sinks)
        keys, values = (
            [sum((part.read() for part in parts[1:]), parts[0].read()) for parts in layers]
            for layers in self.encode(keys_LHkTD, values_LHkTD)
        )
        return [np.swapaxes(key, 1, 2) for key in keys], values

    def cache_bytes(self, context: int) -> int:
        """Codes, zero points and scales, and the exact tokens in fp16."""
        return bytes_of_context(self, self.shape, context)
