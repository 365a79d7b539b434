"""The alignment of a group that merges by ``slerp`` (docs/operator.md, Aligned slerp).

Layers describe the same token in bases of their own: the raw cosine of two layers' vectors is about
0 where nothing ties their bases together. A merge of directions has something to merge once every
layer's heads are matched with the first one's and turned to them (orthogonal Procrustes: A = U V^T
of E[x_0 x_g^T] = U S V^T has the largest E[x_0^T A x_g]; Schoenemann 1966).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.exporter.calibration.group_tables import (
    Permutation,
    reading_arrays,
    reading_attributes,
)
from minicache.exporter.calibration.matching import aligned_cosine, match_heads
from minicache.exporter.calibration.moments import JointMoments
from minicache.exporter.calibration.rope_probe import Rope

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Bases:
    """How the keys of a group's layers, or their values, become alike.

    Attributes:
        maps: A_g of the head that each layer joins a code head with, ``[G, Hk, D, D]`` fp32;
            orthogonal, the first layer's are identities.
        permutation: ``[G][Hk]``: the head of a layer in each code head.
    """

    maps: Array
    permutation: Permutation

    @property
    def encoder(self) -> Array:
        """``[Hk, D, G * D]``: the maps of a code head side by side."""
        group, heads, size, _ = self.maps.shape
        return np.asarray(self.maps.transpose(1, 2, 0, 3).reshape(heads, size, group * size))

    def decoder(self, slot: int) -> Array:
        """``[Hk, D, D]``: the maps of one layer in its own order of heads."""
        own: Array = np.empty_like(self.maps[slot])
        own[list(self.permutation[slot])] = self.maps[slot]
        return own

    def align(self, slot: int, vectors: Array) -> Array:
        """One layer's vectors ``[T, Hk, D]`` in the code space, by code head."""
        matched = vectors[:, list(self.permutation[slot])].astype(np.float32)
        aligned: Array = np.einsum("hij,thj->thi", self.maps[slot], matched)
        return aligned


@dataclass(frozen=True)
class Alignment:
    """The alignment of a group of layers.

    Attributes:
        layers: the group.
        key: bases of segment-relative keys.
        value: of values.
        rope: of the group's keys.
        segment_length: positions L of a segment; 0: keys are aligned as they are.
    """

    layers: tuple[int, ...]
    key: Bases
    value: Bases
    rope: Rope
    segment_length: int

    def attributes(self) -> dict[str, Any]:
        """Attributes of the nodes beside those of ``slerp``, by the names of ``schemas``."""
        permutations = {"key": self.key.permutation, "value": self.value.permutation}
        return reading_attributes(self.rope, self.segment_length, **permutations)

    def arrays(self, slot: int, decoder_dtype: npt.DTypeLike = np.float32) -> dict[str, Array]:
        """Constant inputs of the node of one slot, by the names of ``schemas``, in its order."""
        decoders = self.key.decoder(slot), self.value.decoder(slot)
        found = reading_arrays(*decoders, self.rope, self.segment_length, decoder_dtype)
        if slot == len(self.layers) - 1:
            found |= {"key_encoder": self.key.encoder, "value_encoder": self.value.encoder}
        return found


def fit_bases(moments: JointMoments, layers: Sequence[int], heads: int) -> Bases:
    """Matches the heads of a group's layers with the first one's, and turns them to it.

    Args:
        moments: of the whole model's keys or values.
        layers: the group.
        heads: Hk.
    """
    size = moments.widths[layers[0]] // heads
    own = tuple(range(heads))
    permutation, maps = [own], [np.broadcast_to(np.eye(size), (heads, size, size))]
    first = _heads(moments, layers[0], layers[0], heads)[own, own]
    for layer in layers[1:]:
        cross = _heads(moments, layers[0], layer, heads)
        other = _heads(moments, layer, layer, heads)[own, own]
        matched = match_heads(first, other, cross, aligned_cosine)
        left, _, right = np.linalg.svd(cross[own, matched])
        permutation.append(matched)
        maps.append(left @ right)
    return Bases(np.stack(maps).astype(np.float32), tuple(permutation))


def _heads(moments: JointMoments, a: int, b: int, heads: int) -> Array:
    """E[x_a x_b^T] of all pairs of heads ``[Hk, Hk, D, D]``."""
    block = moments.block(a, b)
    assert block is not None, (a, b)
    size = len(block) // heads
    return block.reshape(heads, size, heads, size).transpose(0, 2, 1, 3)
