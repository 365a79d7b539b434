"""How our operator may keep a cache: attributes of its nodes, by the names of the tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

PROTECTED = {"window": 64, "sinks": 4, "ring_slots": 128, "code_layout": "tile"}
BASIS = {"mode": "subspace", "has_decoder": 1, "segment_length": 1024}


@dataclass(frozen=True)
class Format:
    """A format.

    Attributes:
        name: for tables.
        attributes: of the nodes, heads and slots of the group apart.
        dtype: of the model around it.
        retained: share of the capacity that the side buffer holds.
    """

    name: str
    attributes: Mapping[str, Any]
    dtype: str = "float32"
    retained: float = 0.0

    @property
    def group(self) -> int:
        """Layers of a group."""
        return int(self.attributes.get("group_size", 1))

    @property
    def coded(self) -> bool:
        """Whether it has codes, for which there is a choice of maths."""
        return self.attributes.get("mode", "exact") != "exact"

    @property
    def model_dtype(self) -> np.dtype[Any]:
        """Of queries, keys and values."""
        return np.dtype(self.dtype)


def slerp(bits: int, group: int = 2, **more: Any) -> dict[str, Any]:
    """Attributes of mode ``slerp`` at head size 128, or ``size``."""
    size = more.pop("size", 128)
    both = {"key_bits": (bits, size), "value_bits": (bits, size)}
    return {**PROTECTED, "mode": "slerp", "group_size": group, **both, **more}


def subspace(group: int, code_heads: int = 0, share: int = 1, size: int = 128) -> dict[str, Any]:
    """Attributes of mode ``subspace`` at 2 bits per element.

    The parts of 8, 4 and 2 bits are those of calibrated plans at this budget: 9/16 of the joint
    vector's components are kept.

    Args:
        group: layers.
        code_heads: 0: one per kv head.
        share: kv heads per code head.
        size: of a head.
    """
    joint = group * share * size
    # Counts are multiples of 8; a joint vector of less than 128 components gives too few.
    few, many = (max(8, joint // part // 8 * 8) for part in (16, 4))
    bits = (8, few, 4, many, 2, many)
    both = {"key_bits": bits, "value_bits": bits}
    return {**PROTECTED, **BASIS, "group_size": group, "code_heads": code_heads, **both}


EXACT16 = "exact fp16"
SLERP8 = "slerp 8 bit"
DELTAS = "slerp 4 bit, deltas 4 bit"
JOINT = "subspace G=1 joint"


def formats(kv_heads: int = 8, size: int = 128) -> dict[str, Format]:
    """All of them, for heads of ``size``."""
    listed = [
        Format("exact fp32", {}),
        Format(EXACT16, {}, "float16"),
        Format(SLERP8, slerp(8, size=size)),
        Format("slerp 4 bit", slerp(4, size=size)),
        Format(DELTAS, slerp(4, size=size, slerp_t=0.5, delta_bits=4)),
        Format(JOINT, subspace(1, 1, kv_heads, size)),
        *(Format(f"subspace G={group}", subspace(group, size=size)) for group in (1, 2, 3, 4)),
        *(Format(f"slerp 8 bit G={group}", slerp(8, group, size=size)) for group in (3, 4)),
    ]
    return {each.name: each for each in listed}


MAIN = ("exact fp32", EXACT16, SLERP8, "slerp 4 bit", JOINT, "subspace G=2", "subspace G=3")
