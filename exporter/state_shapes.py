"""Shapes of the state tensors, from the attributes of a node; letters as in ``schemas``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SEGMENT_ALIGNMENT = 4  # bytes: every segment of a code is padded to it


def code_bytes(bits: tuple[int, ...]) -> int:
    """Bytes of one token's code: each segment packed and padded to ``SEGMENT_ALIGNMENT``."""
    total = 0
    for width, count in zip(bits[0::2], bits[1::2], strict=True):
        packed = (width * count + 7) // 8
        total += -(-packed // SEGMENT_ALIGNMENT) * SEGMENT_ALIGNMENT
    return total


def delta_code(attributes: Mapping[str, Any]) -> tuple[int, ...]:
    """``bits, count`` of the deltas of a pair, keys' and values' alike; empty where there are none.

    Coefficients in a basis are fp16.
    """
    if attributes["delta_rank"]:
        return 16, int(attributes["delta_rank"])
    bits = int(attributes["delta_bits"])
    return (bits, int(attributes["head_size"])) if bits else ()


def magnitude_count(attributes: Mapping[str, Any]) -> int:
    """Magnitudes per token and code head: one per layer for ``slerp`` with own ones, else one."""
    own = attributes["mode"] == "slerp" and attributes["magnitude"] == "own"
    return int(attributes["group_size"]) if own else 1


def retained_extra(attributes: Mapping[str, Any]) -> int:
    """Side-buffer slots beyond M: ``budget`` keeps X more tokens, that going back may need."""
    slack = int(attributes["ring_slots"] - attributes["window"])
    return slack if attributes["retention"] == "budget" else 0


def state_shape(
    name: str,
    attributes: Mapping[str, Any],
    batch: int,
    capacity: int,
    retained: int = 0,
    segments: int = 1,
) -> tuple[int, ...]:
    """Shape of one state tensor.

    Args:
        name: one of ``state_names``.
        attributes: complete attributes of any node of the group.
        batch: B.
        capacity: C, a multiple of ``CAPACITY_MULTIPLE``.
        retained: P = M + ``retained_extra``, where the group retains.
        segments: n, where the group evicts.
    """
    group, kv_heads = attributes["group_size"], attributes["kv_num_heads"]
    code_heads, head_size = attributes["code_heads"], attributes["head_size"]
    if name in ("key_code", "value_code"):
        return batch, code_heads, capacity, code_bytes(attributes[name.replace("code", "bits")])
    if name in ("key_magnitude", "value_magnitude"):
        return batch, code_heads, capacity, magnitude_count(attributes)
    if name in ("key_delta", "value_delta"):
        return batch, code_heads, capacity, code_bytes(delta_code(attributes))
    if name in ("key_delta_ratio", "value_delta_ratio"):
        return batch, code_heads, capacity, 1
    if name in ("exact_key", "exact_value"):
        slots = attributes["sinks"] + attributes["ring_slots"]
        if attributes["mode"] == "exact":
            local, ring = attributes["local_window_size"], attributes["ring_slots"]
            slots = min(capacity, ring) if local else capacity
        return batch, group, kv_heads, slots, head_size
    if name in ("retained_key", "retained_value"):
        return batch, group, kv_heads, retained, head_size
    if name == "similarity_range":
        return batch, attributes["ring_slots"] - attributes["window"] + 1, 2
    if name == "evicted":
        return batch, segments + 1
    if name == "attention_mass":
        return batch, capacity
    return batch, retained
