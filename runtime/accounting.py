"""Bytes and bits of a cache, from what a manifest declares."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from minicache.runtime.cache import CODED, STORAGE
from minicache.runtime.manifest import BATCH, CAPACITY, Manifest, StateTensor

MODEL_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}  # per element of the model's type


def kv_elements(manifest: Manifest, context: int) -> int:
    """Numbers in a plain key and value cache of one sequence.

    Layers of sliding-window attention count with their window at most, as a runtime that knows it
    would keep them: ratios to this are not inflated by tokens that nobody reads.
    """
    rings = ring_states(manifest)
    elements = 0
    for state in manifest.state:
        if state.name == "exact_key":  # [B, G, Hk, slots, D]
            _, layers, heads, slots, head_dim = state.shape
            tokens = context
            if state in rings:  # of the window and the rewind slack
                tokens = min(context, int(slots) - manifest.rewind_slack)
            elements += 2 * int(layers) * int(heads) * int(head_dim) * tokens
    return elements


def ring_states(manifest: Manifest) -> list[StateTensor]:
    """State of layers of sliding-window attention: rings of exact tokens, and nothing else."""
    rings = {
        state.group
        for state in manifest.state
        if state.name == "exact_key" and CAPACITY not in state.shape
    } - _coded_groups(manifest)
    return [state for state in manifest.state if state.group in rings]


def state_bytes(states: Iterable[StateTensor]) -> int:
    """Bytes of states of one row whose size depends on neither capacity nor retention."""
    return sum(
        item_bytes(state) * math.prod(int(size) for size in state.shape if size != BATCH)
        for state in states
    )


def _coded_groups(manifest: Manifest) -> set[int]:
    return {state.group for state in manifest.state if state.name == CODED[0]}


def bits_per_element(manifest: Manifest) -> float:
    """Bits per key or value element in the coded part of the cache, magnitudes included.

    Sinks, the recent window and retained tokens are not in it: their share falls with the context.
    Neither are layers that stay exact, such as those of sliding-window attention.
    A model without codes has the bits of its exact buffers.
    """
    coded = _coded_groups(manifest)
    if not coded:
        widths = [8 * item_bytes(state) for state in manifest.state if state.name == "exact_key"]
        return float(np.mean(widths)) if widths else 8.0 * MODEL_BYTES[manifest.dtype]
    stored, elements = 0, 0
    for state in manifest.state:
        if state.group not in coded:
            continue
        if state.name in CODED:
            sizes = [size for size in state.shape if size not in (BATCH, CAPACITY)]
            stored += 8 * item_bytes(state) * math.prod(int(size) for size in sizes)
        if state.name == "exact_key":  # [B, G, Hk, slots, D]
            _, layers, heads, _, head_dim = state.shape
            elements += 2 * int(layers) * int(heads) * int(head_dim)
    return stored / elements


def item_bytes(state: StateTensor) -> int:
    """Bytes of one element of a state."""
    return np.dtype(STORAGE.get(state.dtype, state.dtype)).itemsize
