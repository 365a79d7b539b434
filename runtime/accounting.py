"""Bytes and bits of a cache, from what a manifest declares."""

from __future__ import annotations

import math

import numpy as np

from minicache.runtime.cache import STORAGE
from minicache.runtime.manifest import BATCH, CAPACITY, Manifest, StateTensor

CODED = ("key_code", "value_code", "key_magnitude", "value_magnitude")
MODEL_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}  # per element of the model's type


def kv_elements(manifest: Manifest, context: int) -> int:
    """Numbers in a plain key and value cache of one sequence."""
    return 2 * manifest.num_layers * manifest.num_kv_heads * manifest.head_dim * context


def bits_per_element(manifest: Manifest) -> float:
    """Bits per key or value element in the coded part of the cache, magnitudes included.

    Sinks, the recent window and retained tokens are not in it: their share falls with the context.
    A model without codes has the bits of its exact buffers.
    """
    coded = {state.group for state in manifest.state if state.name == CODED[0]}
    if not coded:
        widths = [8 * _item_bytes(state) for state in manifest.state if state.name == "exact_key"]
        return float(np.mean(widths)) if widths else 8.0 * MODEL_BYTES[manifest.dtype]
    stored, elements = 0, 0
    for state in manifest.state:
        if state.group not in coded:
            continue
        if state.name in CODED:
            sizes = [size for size in state.shape if size not in (BATCH, CAPACITY)]
            stored += 8 * _item_bytes(state) * math.prod(int(size) for size in sizes)
        if state.name == "exact_key":  # [B, G, Hk, slots, D]
            _, layers, heads, _, head_dim = state.shape
            elements += 2 * int(layers) * int(heads) * int(head_dim)
    return stored / elements


def _item_bytes(state: StateTensor) -> int:
    return np.dtype(STORAGE.get(state.dtype, state.dtype)).itemsize
