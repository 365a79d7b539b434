"""The shape of one call: heads, rows, cached and new tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np


@dataclass(frozen=True)
class StepShape:
    """One call of an attention layer.

    Attributes:
        totals: tokens of each batch row after the call.
        new_tokens: of every row.
        capacity: tokens that a cache has room for.
    """

    totals: tuple[int, ...]
    new_tokens: int = 1
    heads: int = 32
    kv_heads: int = 8
    head_size: int = 128
    capacity: int = 0

    def __post_init__(self) -> None:
        if min(self.totals) < self.new_tokens:
            raise ValueError(f"rows of {self.totals} tokens cannot get {self.new_tokens} new ones")
        if not self.capacity:  # a code holds whole tiles of 16 tokens
            object.__setattr__(self, "capacity", -(-max(self.totals) // 16) * 16)

    @property
    def batch(self) -> int:
        """Rows."""
        return len(self.totals)

    @property
    def pasts(self) -> tuple[int, ...]:
        """Cached tokens of each row before the call."""
        return tuple(total - self.new_tokens for total in self.totals)

    def lengths(self) -> dict[str, np.ndarray]:
        """The inputs ``past_lengths`` and ``total_lengths`` of our operator."""
        return {
            "past_lengths": np.array(self.pasts, np.int32),
            "total_lengths": np.array(self.totals, np.int32),
        }


@cache
def _block() -> np.ndarray:
    rng = np.random.default_rng(0)
    return (rng.standard_normal(1 << 20, np.float32) * 0.3).astype(np.float16)


def random_half(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    """Normal numbers of variance 0.09 as fp16, made fast: a block of them, over and over."""
    return np.resize(_block()[rng.integers(1 << 19) :], tuple(shape))


def random_like(rng: np.random.Generator, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """A cache's content: any bytes as codes, small normal numbers elsewhere."""
    if dtype.kind in "iu":
        return np.frombuffer(bytearray(rng.bytes(int(np.prod(shape)))), dtype).reshape(shape)
    return random_half(rng, shape).astype(dtype, copy=False)
