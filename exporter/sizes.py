"""Bytes that the state buffers of an export occupy: what a session allocates, to the byte."""

from __future__ import annotations

import math
from dataclasses import dataclass

from minicache.runtime.accounting import MODEL_BYTES, item_bytes, kv_elements
from minicache.runtime.cache import resolve_shape, round_capacity
from minicache.runtime.eviction.size import steady_slots
from minicache.runtime.manifest import Manifest


@dataclass(frozen=True)
class CacheSize:
    """Resident bytes of one sequence's cache at one context length.

    Attributes:
        context: tokens; unless some are evicted, the capacity C.
        resident: bytes of all state buffers, rings and side buffers included; where a policy evicts
            at the end of a prompt, after that (on a GPU, the memory stays).
        fp16: bytes of a plain fp16 cache: the baseline of every ratio. Layers of sliding-window
            attention count with their window.
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

    @property
    def ratio_to_exact(self) -> float:
        """How many times smaller than the plain cache in the model's own type."""
        return self.exact / self.resident


def cache_size(manifest: Manifest, context: int, batch: int = 1) -> CacheSize:
    """Sizes at ``context`` tokens (rounded up to whole key tiles, as sessions do)."""
    capacity = round_capacity(context)
    slots = steady_slots(manifest, context)
    resident = sum(
        math.prod(resolve_shape(tensor, manifest, batch, slots)) * item_bytes(tensor)
        for tensor in manifest.state
    )
    elements = kv_elements(manifest, capacity) * batch
    return CacheSize(context, resident, 2 * elements, MODEL_BYTES[manifest.dtype] * elements)
