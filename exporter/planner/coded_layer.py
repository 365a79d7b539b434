"""One layer's keys or values coded, everything else exact: what sensitivities are measured on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.exporter.baselines.cache_codec import end_of_coded
from minicache.exporter.calibration.codec import SubspaceCodec

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class CodedLayer:
    """A ``CacheCodec`` of a single layer and kind.

    Attributes:
        codec: of a group of one layer.
        place: of the layer among those that are coded.
        kind: ``key`` or ``value``.
        sinks: first tokens, kept exact.
        window: recent tokens, kept exact.
    """

    codec: SubspaceCodec
    place: int
    kind: str
    sinks: int
    window: int

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.kind}s of layer {self.codec.layers[0]}"

    @property
    def bits_per_element(self) -> float:
        """Of the coded part."""
        return (self.codec.key if self.kind == "key" else self.codec.value).bits_per_element

    def coded_end(self, past: int) -> int:
        """All but the window."""
        return end_of_coded(past, self.sinks, self.window)

    def rewrite(
        self, keys_LHkTD: Sequence[Array], values_LHkTD: Sequence[Array], start: int
    ) -> tuple[list[Array], list[Array]]:
        """As ``CacheCodec.rewrite``."""
        keys, values = list(keys_LHkTD), list(values_LHkTD)
        rows = keys if self.kind == "key" else values
        vectors_TGHkD = np.swapaxes(rows[self.place], 0, 1)[:, None]
        if self.kind == "key":
            positions = np.arange(start, start + len(vectors_TGHkD))
            restored = self.codec.restore_keys(vectors_TGHkD, positions)
        else:
            restored = self.codec.restore_values(vectors_TGHkD)
        rows[self.place] = np.swapaxes(restored[:, 0], 0, 1)
        return keys, values

    def cache_bytes(self, context: int) -> int:
        """Not a cache that anyone would keep."""
        raise NotImplementedError
