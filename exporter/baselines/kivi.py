"""KIVI (arXiv:2402.02750): keys quantised per channel over groups of tokens, values per token.

Both are asymmetric with the minimum as zero point: k = round((x - zero) / scale) in
0..2^b - 1, scale = (max - min) / (2^b - 1) of the group, zero and scale stored in fp16. A group is
32 tokens of one key channel, or 32 channels of one token's value, as in the paper's experiments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.exporter.baselines.cache_codec import (
    check_exact_part,
    check_whole_blocks,
    end_of_coded,
)
from minicache.exporter.baselines.cache_shape import FP16_BYTES, CacheShape
from minicache.runtime.errors import PlanError

Array = npt.NDArray[Any]

GROUP = 32
BITS = (2, 3, 4, 8)


@dataclass(frozen=True)
class Kivi:
    """KIVI's codec for keys and values, of the layers of full attention as all codecs here.

    Only whole groups of tokens are coded, so up to ``GROUP`` - 1 tokens beyond the window are
    exact. The paper does so with keys; doing it with values, too, is a little in KIVI's favour.

    Attributes:
        bits: 2, 3, 4 or 8.
        shape: of the model's cache, for counting bytes.
        sinks: first tokens, kept exact; 0 in the paper.
        window: recent tokens, kept exact; the paper's residual is 128.
        name: for tables; empty: ``kivi-int{bits}``.
    """

    bits: int
    shape: CacheShape
    sinks: int = 0
    window: int = 64
    name: str = ""

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise PlanError(f"KIVI with {self.bits} bit is unknown; give one of {BITS}")
        if self.shape.head_dim % GROUP:
            raise PlanError(
                f"KIVI codes values in groups of {GROUP} channels, the head size is "
                f"{self.shape.head_dim}"
            )
        check_exact_part(self.sinks, self.window)
        if not self.name:
            object.__setattr__(self, "name", f"kivi-int{self.bits}")

    @property
    def bits_per_element(self) -> float:
        """The codes' bits, and the share of the group's scale and zero point."""
        return self.bits + 2 * 8 * FP16_BYTES / GROUP

    def coded_end(self, past: int) -> int:
        """All whole groups before the window."""
        return end_of_coded(past, self.sinks, self.window, GROUP)

    def rewrite(
        self, keys_LHkTD: Sequence[Array], values_LHkTD: Sequence[Array], start: int
    ) -> tuple[list[Array], list[Array]]:
        """Quantises whole groups; see ``CacheCodec.rewrite``.

        Raises:
            PlanError: the tokens are not whole groups.
        """
        check_whole_blocks("KIVI", GROUP, keys_LHkTD[0].shape[1], start, self.sinks)
        # Tokens last, so that a group of a key channel is contiguous in the last axis.
        keys = [
            np.swapaxes(quantise_groups(np.swapaxes(key, 1, 2), self.bits), 1, 2)
            for key in keys_LHkTD
        ]
        return keys, [quantise_groups(value, self.bits) for value in values_LHkTD]

    def cache_bytes(self, context: int) -> int:
        """Codes with fp16 scale and zero point per group, and the exact tokens in fp16."""
        coded = max(min(self.coded_end(context), context) - self.sinks, 0)
        elements = coded * self.shape.elements_per_token
        groups = elements // GROUP
        codes = groups * (self.bits * GROUP // 8)
        return codes + groups * 2 * FP16_BYTES + self.shape.fp16_bytes(context - coded)


def quantise_groups(x: Array, bits: int) -> Array:
    """Quantises groups of ``GROUP`` along the last axis and reads them back, fp32.

    Args:
        x: ``[..., n * GROUP]``.
        bits: per element.
    """
    groups = np.asarray(x, np.float32).reshape(*x.shape[:-1], -1, GROUP)
    low, high = groups.min(axis=-1, keepdims=True), groups.max(axis=-1, keepdims=True)
    top = 2**bits - 1
    zero = low.astype(np.float16).astype(np.float32)
    scale = ((high - low) / top).astype(np.float16).astype(np.float32)
    # A constant group, or one whose range fp16 rounds to zero, is its zero point.
    divisor = np.where(scale > 0, scale, np.float32(1))
    levels = np.clip(np.rint((groups - zero) / divisor), 0, top)
    return np.asarray(levels * scale + zero).reshape(x.shape)
