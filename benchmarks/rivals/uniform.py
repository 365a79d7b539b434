"""Asymmetric uniform quantisation in groups, with the codes apart from the scales.

k = clamp(round((x - zero) / scale), 0, 2^b - 1), scale = (max - min) / (2^b - 1) of the group, zero
its minimum, both stored in fp16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.exporter.baselines.cache_shape import FP16_BYTES
from minicache.runtime.errors import PlanError

Array = npt.NDArray[Any]

PARAMETER_BYTES = 2 * FP16_BYTES  # zero and scale of a group


@dataclass(frozen=True)
class Uniform:
    """Codes of an array and what they mean.

    Attributes:
        levels: the codes as numbers, fp32 ``[..., groups, group]``.
        zero: fp32 ``[..., groups, 1]`` with values that fp16 holds.
        scale: likewise.
        bits: per code; 0 where the codes are another array's, and are not held twice.
    """

    levels: Array
    zero: Array
    scale: Array
    bits: int

    def read(self) -> Array:
        """The numbers that the codes stand for, fp32 ``[..., groups * group]``."""
        restored: Array = self.levels * self.scale + self.zero
        return restored.reshape(*restored.shape[:-2], -1)

    def with_codes(self, other: Uniform) -> Uniform:
        """These scales for the codes that another array holds."""
        return Uniform(other.levels, self.zero, self.scale, 0)

    @property
    def nbytes(self) -> int:
        """Bytes that codes and scales take when they are packed."""
        return -(-self.levels.size * self.bits // 8) + self.zero.size * PARAMETER_BYTES


def quantise(x: Array, bits: int, group: int, shrink: float = 0.0) -> Uniform:
    """Quantises groups along the last axis.

    Args:
        x: ``[..., n * group]``.
        bits: per code.
        group: codes that share zero and scale.
        shrink: moves both ends inwards by this share of the range when codes are read, not when
            they are made (the data-free calibration of arXiv:2510.11236, its eta).
    """
    groups = np.asarray(x, np.float32).reshape(*x.shape[:-1], -1, group)
    low, high = groups.min(axis=-1, keepdims=True), groups.max(axis=-1, keepdims=True)
    top = 2**bits - 1
    zero, scale = as_fp16(low), as_fp16((high - low) / top)
    # A constant group, or one whose range fp16 rounds to zero, is its zero point.
    divisor = np.where(scale > 0, scale, np.float32(1))
    levels = np.clip(np.rint((groups - zero) / divisor), 0, top)
    if shrink:
        zero, scale = as_fp16(zero + shrink * top * scale), as_fp16((1 - 2 * shrink) * scale)
    return Uniform(levels, zero, scale, bits)


def group_within(width: int, largest: int) -> int:
    """The largest size of a group that divides ``width`` and is at most ``largest``."""
    return max(size for size in range(1, min(width, largest) + 1) if width % size == 0)


def group_bits(bits: int, group: int) -> float:
    """Bits per code of a group, its zero and scale included."""
    return bits + 8 * PARAMETER_BYTES / group


def as_fp16(x: Array) -> Array:
    """Rounds to what fp16 holds; fp32."""
    return x.astype(np.float16).astype(np.float32)


def check_bits(bits: int, known: Sequence[int]) -> None:
    """Checks a codec's bits.

    Raises:
        PlanError: they are not among the known ones.
    """
    if bits not in known:
        raise PlanError(f"codes of {bits} bit are unknown to this method; give one of {known}")


def check_value_groups(head_dim: int, group: int) -> None:
    """Checks that a token's value of one head is whole groups of channels.

    Raises:
        PlanError: it is not.
    """
    if head_dim % group:
        raise PlanError(
            f"values are coded in groups of {group} channels, the head size is {head_dim}"
        )
