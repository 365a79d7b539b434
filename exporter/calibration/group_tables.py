"""What a calibration makes of a group: attributes and constant inputs of its nodes."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Permutation = tuple[tuple[int, ...], ...]  # [G][Hk]: the head of a layer in each slot


class GroupTables(Protocol):
    """A codec or an alignment, as the rewrite of a graph takes it."""

    def attributes(self) -> dict[str, Any]:
        """Attributes of the group's nodes, by the names of ``schemas``."""

    def arrays(self, slot: int, decoder_dtype: npt.DTypeLike = np.float32) -> dict[str, Array]:
        """Constant inputs of the node of one slot, by the names of ``schemas``, in its order."""


def permutation_attributes(**by_kind: Permutation) -> dict[str, tuple[int, ...]]:
    """Attributes of the permutations of ``key`` and ``value``; identities are left out."""
    found = {}
    for kind, permutation in by_kind.items():
        flat = tuple(head for row in permutation for head in row)
        if flat != tuple(range(len(permutation[0]))) * len(permutation):
            found[f"{kind}_head_permutation"] = flat
    return found
