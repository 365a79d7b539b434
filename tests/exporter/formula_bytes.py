"""Bytes of states by the formulas of the op's schema, to judge what a runtime allocates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from minicache.exporter import schemas
from minicache.runtime.cache import retained_capacity
from minicache.runtime.manifest import Manifest

ITEM_BYTES = {"int8": 1, "fp16": 2, "int32": 4, "fp32": 4}


def state_bytes(
    attributes: Mapping[str, Any], dtype: str, batch: int, capacity: int, fraction: float = 0.0
) -> int:
    """Bytes of the state of one group.

    Args:
        attributes: complete attributes of a node of the group.
        dtype: of the model: fp32 or fp16.
        batch: rows.
        capacity: tokens per row.
        fraction: of the capacity, that the side buffer of retained tokens holds.
    """
    slots = retained_capacity(fraction, capacity) + schemas.retained_extra(attributes)
    types = {state.name: state.dtype for state in schemas.STATES}
    total = 0
    for name in schemas.state_names(attributes):
        kind = types[name]
        if kind == "T|fp16":  # coded groups keep exact tokens in fp16, whatever the model's type
            kind = dtype if attributes["mode"] == "exact" else "fp16"
        shape = schemas.state_shape(name, attributes, batch, capacity, slots)
        total += math.prod(shape) * ITEM_BYTES[kind]
    return total


def exact_bytes(attributes: Mapping[str, Any], dtype: str, capacity: int) -> int:
    """Bytes of one row's keys and values in the layers of a group, where every token is exact."""
    layers, heads, size = (attributes[n] for n in ("group_size", "kv_num_heads", "head_size"))
    return int(2 * layers * heads * capacity * size * ITEM_BYTES[dtype])


def retained_fraction(manifest: Manifest, group: int) -> float:
    """Tokens that a group retains, as a fraction of the capacity; 0 where it retains none."""
    for state in manifest.state:
        if (state.group, state.name) == (group, "retained_position"):
            return manifest.retained_fractions[str(state.shape[-1])]
    return 0.0
