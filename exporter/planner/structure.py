"""How layers are cut into groups that share a code."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Layer(Protocol):
    """What a structure needs to know of an attention layer."""

    @property
    def kind(self) -> int | tuple[int | str, ...]:
        """Layers of different kind never share a group."""

    @property
    def num_kv_heads(self) -> int:
        """Kv heads Hk."""


@dataclass(frozen=True, order=True)
class Structure:
    """A way to cut a model into groups.

    Attributes:
        group_size: layers of the largest group.
        joint_heads: kv heads that share one code; 1: heads apart.
    """

    group_size: int
    joint_heads: int = 1

    @property
    def name(self) -> str:
        """For tables and journals."""
        heads = "heads apart" if self.joint_heads == 1 else f"{self.joint_heads} heads joint"
        return f"G={self.group_size}, {heads}"

    def groups(self, layers: Sequence[Layer]) -> list[tuple[int, ...]]:
        """Groups of indices into ``layers``: those of a kind in order, cut as evenly as possible.

        Layers of a kind need not be adjacent: the neighbours of a layer are the next ones of its
        own kind.
        """
        by_kind: dict[object, list[int]] = {}
        for index, layer in enumerate(layers):
            by_kind.setdefault(layer.kind, []).append(index)
        groups = []
        for members in by_kind.values():
            count = -(-len(members) // self.group_size)
            ends = [len(members) * part // count for part in range(count + 1)]
            groups += [tuple(members[start:end]) for start, end in itertools.pairwise(ends)]
        return sorted(groups)

    def code_heads(self, layer: Layer) -> int:
        """Code heads Hc of a group of such layers."""
        return max(1, layer.num_kv_heads // self.joint_heads)


def structures(
    layers: Sequence[Layer], max_group_size: int, code_heads: str = "apart"
) -> list[Structure]:
    """All structures to try; of those that cut the model alike, the first.

    Args:
        layers: the layers that are coded.
        max_group_size: layers of the largest group.
        code_heads: ``apart``; ``joint``: all kv heads of a layer share a code; ``any``: both, and
            every divisor between.
    """
    heads = min(layer.num_kv_heads for layer in layers)
    joint = [number for number in range(1, heads + 1) if heads % number == 0]
    if code_heads == "apart":
        joint = joint[:1]
    elif code_heads == "joint":
        joint = joint[-1:]
    found: dict[object, Structure] = {}
    for number in joint:
        for size in range(1, min(max_group_size, len(layers)) + 1):
            structure = Structure(size, number)
            found.setdefault((number, tuple(structure.groups(layers))), structure)
    return list(found.values())
