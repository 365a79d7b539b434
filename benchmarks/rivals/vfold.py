"""VFold (arXiv:2610.12338): neighbouring layers share the mean of their values, keys stay.

Before they are averaged, every layer's values are mapped into the frame of a reference layer, head
by head: heads are matched (assignment problem), and the map of a matched pair is that of canonical
correlation analysis between the two, fitted on a text. Here values are mapped back after averaging,
which computes the same as the paper's folding of map and inverse into W_V and W_O.

The reference is the first layer of a pair and the middle one of a larger group. With ``key_bits``
and ``value_bits`` both parts are quantised in groups of 32 as KIVI does, which the paper combines
it with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.rivals.alignment import HeadMap, fit_map
from benchmarks.rivals.counting import bytes_of_context
from benchmarks.rivals.uniform import check_bits, check_value_groups, group_bits, quantise
from minicache.exporter.baselines.cache_codec import (
    check_exact_part,
    check_whole_blocks,
    end_of_coded,
)
from minicache.exporter.baselines.cache_shape import CacheShape
from minicache.runtime.errors import PlanError

Array = npt.NDArray[Any]

GROUP = 32
BITS = (0, 2, 3, 4, 8)


@dataclass(frozen=True)
class VFold:
    """Averaged values.

    Attributes:
        group_layers: layers that share their values; what is left over at the end shares, too.
        shape: of the model's cache.
        maps: of each layer into its reference's frame.
        bits: of keys and of averaged values; 0: fp16.
        sinks: first tokens, kept exact; 4 in the paper.
        window: recent tokens, kept exact; 128 in the paper.
        name: for tables; empty: ``vfold-{group_layers}``.
    """

    group_layers: int
    shape: CacheShape
    maps: tuple[HeadMap, ...]
    bits: int = 0
    sinks: int = 4
    window: int = 128
    name: str = ""

    def __post_init__(self) -> None:
        check_bits(self.bits, BITS)
        check_exact_part(self.sinks, self.window)
        if self.group_layers < 1 or len(self.maps) != self.shape.layers:
            raise PlanError(
                f"{len(self.maps)} maps and groups of {self.group_layers} layers do not suit "
                f"{self.shape.layers} layers; give a map for each layer, and groups of 1 or more"
            )
        if self.bits:
            check_value_groups(self.shape.head_dim, GROUP)
        if not self.name:
            object.__setattr__(self, "name", f"vfold-{self.group_layers}")

    @staticmethod
    def fit(values_LnHkD: Sequence[Array], group_layers: int) -> tuple[HeadMap, ...]:
        """Maps of all layers, fitted to a sample.

        Args:
            values_LnHkD: by layer, values ``[n, Hk, D]``.
            group_layers: layers that will share.

        Raises:
            PlanError: the sample is empty.
        """
        if not len(values_LnHkD[0]):
            raise PlanError("maps between layers need a sample of at least one token")
        found = []
        for group in groups_of(len(values_LnHkD), group_layers):
            reference = group[0] if len(group) == 2 else group[len(group) // 2]
            for layer in group:
                same = layer == reference
                _, heads, size = values_LnHkD[layer].shape
                found.append(
                    HeadMap.identity(heads, size)
                    if same
                    else fit_map(values_LnHkD[reference], values_LnHkD[layer])
                )
        return tuple(found)

    @property
    def bits_per_element(self) -> float:
        """Mean over keys and values."""
        each = group_bits(self.bits, GROUP) if self.bits else 16.0
        shared = len(groups_of(self.shape.layers, self.group_layers)) / self.shape.layers
        return each * (1 + shared) / 2

    def coded_end(self, past: int) -> int:
        """All but the window, in whole groups of tokens where keys are quantised."""
        return end_of_coded(past, self.sinks, self.window, GROUP if self.bits else 1)

    def encode(
        self, keys_LHkTD: Sequence[Array], values_LHkTD: Sequence[Array]
    ) -> tuple[list[Array], list[Array]]:
        """Keys by layer and shared values by group, as they are read back, fp32 ``[Hk, T, D]``."""
        keys = [np.asarray(key, np.float32) for key in keys_LHkTD]
        shared = []
        for group in groups_of(self.shape.layers, self.group_layers):
            mapped = [self.maps[layer].apply(values_LHkTD[layer]) for layer in group]
            shared.append(np.mean(mapped, axis=0, dtype=np.float32))
        if self.bits:
            turned = [quantise(np.swapaxes(key, 1, 2), self.bits, GROUP).read() for key in keys]
            keys = [np.swapaxes(key, 1, 2) for key in turned]
            shared = [quantise(value, self.bits, GROUP).read() for value in shared]
        return keys, shared

    def rewrite(
        self, keys_LHkTD: Sequence[Array], values_LHkTD: Sequence[Array], start: int
    ) -> tuple[list[Array], list[Array]]:
        """Averages values, and quantises where asked for; see ``CacheCodec.rewrite``.

        Raises:
            PlanError: keys are quantised, and the tokens are not whole groups.
        """
        if self.bits:
            check_whole_blocks(self.name, GROUP, keys_LHkTD[0].shape[1], start, self.sinks)
        keys, shared = self.encode(keys_LHkTD, values_LHkTD)
        values = []
        for group, mean in zip(
            groups_of(self.shape.layers, self.group_layers), shared, strict=True
        ):
            values += [self.maps[layer].undo(mean) for layer in group]
        return keys, values

    def cache_bytes(self, context: int) -> int:
        """Keys, shared values, scales, and the exact tokens in fp16."""
        return bytes_of_context(self, self.shape, context)


def groups_of(layers: int, size: int) -> list[range]:
    """Neighbouring layers in groups of ``size``; the last group may be smaller."""
    return [range(start, min(start + size, layers)) for start in range(0, layers, size)]
