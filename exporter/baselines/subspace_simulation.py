"""Our own codec on an exact session: what an export would read back, without exporting.

The exact session holds every token in the model's type, an export holds recent ones in fp16 and
encodes from there; that difference is not simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.exporter import schemas
from minicache.exporter.baselines.cache_codec import check_exact_part, end_of_coded
from minicache.exporter.baselines.cache_shape import FP16_BYTES, CacheShape
from minicache.exporter.calibration.codec import Code, SubspaceCodec
from minicache.runtime.errors import PlanError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class SubspaceSimulation:
    """Codecs of groups that cover all layers of full attention.

    Attributes:
        groups: the codecs; together they hold every such layer once.
        shape: of the model's cache.
        sinks: first tokens, kept exact.
        window: recent tokens, kept exact.
        ring_slots: recent tokens that an export has room for: window and rewind slack.
        name: for tables.
    """

    groups: tuple[SubspaceCodec, ...]
    shape: CacheShape
    sinks: int = 4
    window: int = 64
    ring_slots: int = 128
    name: str = "subspace"

    def __post_init__(self) -> None:
        check_exact_part(self.sinks, self.window)
        layers = self._layers()
        if len(layers) != self.shape.layers or len(set(layers)) != len(layers):
            raise PlanError(
                f"the groups hold layers {layers}; each of the {self.shape.layers} layers of full "
                "attention must be in one group"
            )

    def _layers(self) -> list[int]:
        """The coded layers by the model's numbers, in the order of ``rewrite``'s arguments."""
        return sorted(layer for group in self.groups for layer in group.layers)

    @property
    def bits_per_element(self) -> float:
        """Mean over all layers, keys and values; padding and magnitudes included."""
        bits = sum(
            len(group.layers) * (group.key.bits_per_element + group.value.bits_per_element)
            for group in self.groups
        )
        return bits / (2 * self.shape.layers)

    def coded_end(self, past: int) -> int:
        """All but the window."""
        return end_of_coded(past, self.sinks, self.window)

    def rewrite(
        self, keys_LHkTD: Sequence[Array], values_LHkTD: Sequence[Array], start: int
    ) -> tuple[list[Array], list[Array]]:
        """Codes each group jointly; see ``CacheCodec.rewrite``."""
        keys, values = list(keys_LHkTD), list(values_LHkTD)
        known = self._layers()
        for group in self.groups:
            places = [known.index(layer) for layer in group.layers]
            key_TGHkD = _by_token([keys_LHkTD[place] for place in places])
            value_TGHkD = _by_token([values_LHkTD[place] for place in places])
            positions = np.arange(start, start + len(key_TGHkD))
            restored_key = group.restore_keys(key_TGHkD, positions)
            restored_value = group.restore_values(value_TGHkD)
            for slot, place in enumerate(places):
                keys[place] = np.swapaxes(restored_key[:, slot], 0, 1)
                values[place] = np.swapaxes(restored_value[:, slot], 0, 1)
        return keys, values

    def cache_bytes(self, context: int) -> int:
        """Buffers of an export for ``context`` tokens: codes for all, sinks and ring in fp16."""
        codes = sum(
            bytes_per_token(code) for group in self.groups for code in (group.key, group.value)
        )
        return context * codes + self.shape.fp16_bytes(self.sinks + self.ring_slots)


def bytes_per_token(code: Code) -> int:
    """Bytes of one token's code, all code heads, with its fp16 magnitudes."""
    return len(code.encoder) * (schemas.code_bytes(code.bits) + FP16_BYTES)


def _by_token(layers_GHkTD: Sequence[Array]) -> Array:
    """``[T, G, Hk, D]`` of a group's ``[Hk, T, D]``."""
    return np.stack(layers_GHkTD).transpose(2, 0, 1, 3)
