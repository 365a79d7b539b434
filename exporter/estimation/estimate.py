"""Bytes of a cache, the streams that fit into a memory, and the bytes that a decode step reads."""

from __future__ import annotations

import math
from dataclasses import dataclass

from minicache.exporter.sizes import cache_size
from minicache.runtime.accounting import item_bytes
from minicache.runtime.cache import CODED, resolve_shape, round_capacity
from minicache.runtime.manifest import CAPACITY, Manifest, StateTensor


@dataclass(frozen=True)
class Estimate:
    """What one way to keep the cache takes.

    Attributes:
        cache: the way, in words.
        resident: bytes of all state buffers of ``batch`` sequences of ``context`` tokens.
        ratio: to a plain fp16 cache of as many tokens.
        read_per_step: bytes of the cache that one decode step of the batch reads.
        streams: sequences of ``context`` tokens that fit into the memory; None: no memory given.
    """

    cache: str
    resident: int
    ratio: float
    read_per_step: int
    streams: int | None = None


def estimate(
    cache: str, manifest: Manifest, context: int, batch: int = 1, memory: int | None = None
) -> Estimate:
    """Sizes of a manifest's cache.

    Args:
        cache: what to call it.
        manifest: of an export, or ``hypothetical_manifest``.
        context: tokens per sequence; capacities are multiples of ``CAPACITY_MULTIPLE``.
        batch: sequences.
        memory: bytes for caches; what weights and activations take is not in it.
    """
    one = cache_size(manifest, context)  # every state has a batch dimension
    read = step_bytes(manifest, context) * batch
    streams = None if memory is None else memory // one.resident
    return Estimate(cache, one.resident * batch, one.ratio_to_fp16, read, streams)


def plain_estimate(
    cache: str, bits: float, manifest: Manifest, context: int, batch: int, memory: int | None
) -> Estimate:
    """A plain cache of the same model with ``bits`` per element, scales included.

    Layers of sliding-window attention count with their window, as everywhere.
    """
    fp16 = cache_size(manifest, context).fp16
    one = math.ceil(fp16 * bits / 16)
    streams = None if memory is None else memory // one
    return Estimate(cache, one * batch, 16 / bits, one * batch, streams)


def step_bytes(manifest: Manifest, context: int) -> int:
    """Bytes of one sequence's state that a decode step behind ``context`` tokens reads.

    Each layer of a group reads the group's codes and its own exact tokens (docs/cpu.md). Decoders
    are read once for the whole batch, as weights are: they are not in it, and neither are retained
    tokens, whose number depends on the text.
    """
    members = {
        int(state.group): int(state.shape[1])
        for state in manifest.state
        if state.name == "exact_key"
    }
    total = 0
    for state in manifest.state:
        if state.name in CODED:
            total += members[state.group] * _bytes(state, manifest, context)
        elif state.name in ("exact_key", "exact_value"):
            total += _exact_bytes(state, manifest, context)
    return total


def _exact_bytes(state: StateTensor, manifest: Manifest, context: int) -> int:
    """Read of sinks and ring: what is visible, not the slack behind it."""
    _, layers, heads, slots, head_dim = state.shape
    visible = context
    if slots != CAPACITY:
        visible = min(context, int(slots) - manifest.rewind_slack)
    per_token = int(layers) * int(heads) * int(head_dim) * item_bytes(state)
    return visible * per_token


def _bytes(state: StateTensor, manifest: Manifest, context: int) -> int:
    return math.prod(resolve_shape(state, manifest, 1, round_capacity(context))) * item_bytes(state)
