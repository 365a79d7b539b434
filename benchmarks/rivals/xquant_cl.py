"""XQuant-CL (arXiv:2508.10395): what is cached is how X changes from layer to layer.

The first three layers are quantised on their own, at 4 bits. From there on an approximation of X
is carried upwards: each layer quantises, per token, what its X adds to it (in grouped-query models
the part that its keys and values read), and adds what the codes stand for. An error of one layer is
part of what the next one codes, so errors do not pile up.

X is taken before the norm's weight, which is multiplied into the projections instead: with the
weight, which every layer has of its own, deltas would be up to twice as large. Of the hidden state
itself only this normalised form can be had from a cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.rivals.counting import bytes_of_context
from benchmarks.rivals.latent import Latent
from benchmarks.rivals.projections import Projection
from benchmarks.rivals.rows import from_rows, to_rows, unrotate
from benchmarks.rivals.uniform import Uniform, check_bits, group_bits, group_within, quantise
from benchmarks.rivals.xquant import BITS, LARGEST_GROUP, joint_latent
from minicache.exporter.baselines.cache_codec import check_exact_part, end_of_coded
from minicache.exporter.baselines.cache_shape import CacheShape
from minicache.exporter.calibration.rope_probe import Rope

Array = npt.NDArray[Any]

BASE_LAYERS, BASE_BITS = 3, 4


@dataclass(frozen=True)
class XQuantCl:
    """XQuant with deltas between layers.

    Attributes:
        bits: of the deltas: 2, 3, 4 or 8.
        shape: of the model's cache.
        projections: of each coded layer.
        ropes: likewise.
        sinks: first tokens, kept exact; 0 in the paper.
        window: recent tokens, kept exact.
        name: for tables; empty: ``xquant-cl-int{bits}``.
    """

    bits: int
    shape: CacheShape
    projections: Sequence[Projection]
    ropes: Sequence[Rope]
    sinks: int = 0
    window: int = 64
    name: str = ""
    latents: tuple[Latent, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_bits(self.bits, BITS)
        check_exact_part(self.sinks, self.window)
        if not self.name:
            object.__setattr__(self, "name", f"xquant-cl-int{self.bits}")
        plain = (layer.without_gain() for layer in self.projections)
        object.__setattr__(self, "latents", tuple(joint_latent(layer) for layer in plain))

    def _bits(self, layer: int) -> int:
        return max(self.bits, BASE_BITS) if layer < BASE_LAYERS else self.bits

    @property
    def bits_per_element(self) -> float:
        """Codes and scales of all layers over the elements of keys and values."""
        total = sum(
            latent.rank * group_bits(self._bits(layer), group_within(latent.rank, LARGEST_GROUP))
            for layer, latent in enumerate(self.latents)
        )
        return total / self.shape.elements_per_token

    def coded_end(self, past: int) -> int:
        """All but the window."""
        return end_of_coded(past, self.sinks, self.window)

    def encode(
        self, keys_LHkTD: Sequence[Array], values_LHkTD: Sequence[Array], start: int
    ) -> list[Uniform]:
        """What is held of each layer; arguments as of ``CacheCodec.rewrite``."""
        held: list[Uniform] = []
        carried: Array | None = None  # approximation of X, [T, E]
        plain = unrotate(keys_LHkTD, self.ropes, start)
        for layer, (latent, key, value) in enumerate(
            zip(self.latents, plain, values_LHkTD, strict=True)
        ):
            wanted = latent.encode(np.concatenate([to_rows(key), to_rows(value)], axis=1))
            known = self._known(carried, layer)
            group = group_within(latent.rank, LARGEST_GROUP)
            held.append(quantise(wanted - known, self._bits(layer), group))
            carried = self._carry(carried, layer, held[-1].read())
        return held

    def _known(self, carried: Array | None, layer: int) -> Array | np.float32:
        """What a layer's part of X is taken to be before its codes are read."""
        if carried is None or layer < BASE_LAYERS:
            return np.float32(0)
        known: Array = carried @ self.latents[layer].basis
        return known

    def _carry(self, carried: Array | None, layer: int, read: Array) -> Array:
        """X as the layers up to this one know it."""
        change: Array = read @ self.latents[layer].basis.T
        return change if carried is None or layer < BASE_LAYERS else carried + change

    def decode(self, held: Sequence[Uniform], start: int) -> tuple[list[Array], list[Array]]:
        """Keys and values by layer ``[Hk, T, D]`` of what ``encode`` gave."""
        keys, values = [], []
        carried: Array | None = None
        for layer, (latent, codes) in enumerate(zip(self.latents, held, strict=True)):
            carried = self._carry(carried, layer, codes.read())
            rows = latent.decode(carried @ latent.basis)
            key, value = np.split(rows, 2, axis=1)
            keys.append(from_rows(key, self.shape.num_kv_heads))
            values.append(from_rows(value, self.shape.num_kv_heads))
        return unrotate(keys, self.ropes, start, back=True), values

    def rewrite(
        self, keys_LHkTD: Sequence[Array], values_LHkTD: Sequence[Array], start: int
    ) -> tuple[list[Array], list[Array]]:
        """Codes every token from the lowest layer upwards; see ``CacheCodec.rewrite``."""
        return self.decode(self.encode(keys_LHkTD, values_LHkTD, start), start)

    def cache_bytes(self, context: int) -> int:
        """Codes and scales, and the exact tokens in fp16."""
        return bytes_of_context(self, self.shape, context)
