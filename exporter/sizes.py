"""Bytes that the state buffers of an export occupy: what a session allocates, to the byte."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from minicache.exporter.schemas import CAPACITY_MULTIPLE
from minicache.runtime.manifest import BATCH, CAPACITY, Manifest, StateTensor

_ELEMENT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}


@dataclass(frozen=True)
class CacheSize:
    """Resident bytes of one sequence's cache at one context length.

    Attributes:
        context: capacity C in tokens.
        resident: bytes of all state buffers, rings and side buffers included.
        fp16: bytes of a plain fp16 cache: the baseline of every ratio.
        exact: bytes of a plain cache in the model's own type.
    """

    context: int
    resident: int
    fp16: int
    exact: int

    @property
    def ratio_to_fp16(self) -> float:
        """How many times smaller than the plain fp16 cache."""
        return self.fp16 / self.resident


def tensor_bytes(tensor: StateTensor, manifest: Manifest, batch: int, capacity: int) -> int:
    """Bytes of one state buffer."""
    symbols = {BATCH: batch, CAPACITY: capacity}
    symbols |= {
        name: retained_capacity(fraction, capacity)
        for name, fraction in manifest.retained_fractions.items()
    }
    sizes = [symbols[size] if isinstance(size, str) else size for size in tensor.shape]
    return math.prod(sizes) * np.dtype(tensor.dtype).itemsize


def retained_capacity(fraction: float, capacity: int) -> int:
    """Side-buffer tokens M for a capacity C: the fraction, rounded up, at least one."""
    return max(1, math.ceil(fraction * capacity - 1e-9))


def cache_size(manifest: Manifest, context: int, batch: int = 1) -> CacheSize:
    """Sizes at ``context`` tokens (rounded up to whole key tiles, as sessions do)."""
    capacity = -(-context // CAPACITY_MULTIPLE) * CAPACITY_MULTIPLE
    resident = sum(tensor_bytes(tensor, manifest, batch, capacity) for tensor in manifest.state)
    elements = 2 * manifest.num_layers * manifest.num_kv_heads * manifest.head_dim * capacity * batch
    return CacheSize(context, resident, 2 * elements, _ELEMENT_BYTES[manifest.dtype] * elements)
