"""What a calibration makes of a group: attributes and constant inputs of its nodes."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from minicache.exporter.calibration.rope_probe import Rope

Array = npt.NDArray[Any]
Permutation = tuple[tuple[int, ...], ...]  # [G][Hk]: the head of a layer in each slot


class GroupTables(Protocol):
    """A codec or an alignment, as the rewrite of a graph takes it."""

    def attributes(self) -> dict[str, Any]:
        """Attributes of the group's nodes, by the names of ``schemas``."""

    def arrays(self, slot: int, decoder_dtype: npt.DTypeLike = np.float32) -> dict[str, Array]:
        """Constant inputs of the node of one slot, by the names of ``schemas``, in its order."""


def reading_attributes(rope: Rope, segment_length: int, **by_kind: Permutation) -> dict[str, Any]:
    """Attributes of nodes that read codes through decoders, whatever the mode."""
    return {
        "has_decoder": 1,
        "segment_length": segment_length,
        "rotary_interleaved": int(rope.interleaved and segment_length > 0),
        **permutation_attributes(**by_kind),
    }


def reading_arrays(
    key_decoder: Array,
    value_decoder: Array,
    rope: Rope,
    segment_length: int,
    decoder_dtype: npt.DTypeLike,
) -> dict[str, Array]:
    """Constant inputs of nodes that read codes through decoders, in the order of ``schemas``."""
    found: dict[str, Array] = {
        "key_decoder": key_decoder.astype(decoder_dtype),
        "value_decoder": value_decoder.astype(decoder_dtype),
    }
    if segment_length:
        found["rope_frequencies"] = np.array(rope.frequencies, np.float32)
    return found


def permutation_attributes(**by_kind: Permutation) -> dict[str, tuple[int, ...]]:
    """Attributes of the permutations of ``key`` and ``value``; identities are left out."""
    found = {}
    for kind, permutation in by_kind.items():
        flat = tuple(head for row in permutation for head in row)
        if flat != tuple(range(len(permutation[0]))) * len(permutation):
            found[f"{kind}_head_permutation"] = flat
    return found
