"""XQuant (arXiv:2508.10395): the input X of each layer is cached, keys and values are made anew.

Where the model's keys and values together are wider than X (multi-head attention), X itself is
quantised, per token. Where they are not (grouped-query attention), the parts of X that the two
projections read are: X U_k per channel over groups of tokens, because its first channels hold
outliers, X U_v per token. Keys are coded before RoPE.

Groups are of 64 tokens, not of the 128 that are usual, lest 127 tokens beside the window stay
exact; along a token of up to 128 codes, as many as divide it.
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
from minicache.exporter.baselines.cache_codec import check_exact_part, end_of_coded
from minicache.exporter.baselines.cache_shape import CacheShape
from minicache.exporter.calibration.rope_probe import Rope
from minicache.runtime.errors import PlanError

Array = npt.NDArray[Any]

TOKEN_GROUP = 64
LARGEST_GROUP = 128
BITS = (2, 3, 4, 8)


@dataclass(frozen=True)
class XQuant:
    """XQuant without deltas.

    Attributes:
        bits: 2, 3, 4 or 8.
        shape: of the model's cache.
        projections: of each coded layer.
        ropes: likewise.
        sinks: first tokens, kept exact; 0 in the paper.
        window: recent tokens, kept exact.
        name: for tables; empty: ``xquant-int{bits}``.
    """

    bits: int
    shape: CacheShape
    projections: Sequence[Projection]
    ropes: Sequence[Rope]
    sinks: int = 0
    window: int = 64
    name: str = ""
    latents: tuple[tuple[Latent, ...], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_bits(self.bits, BITS)
        check_exact_part(self.sinks, self.window)
        if not self.name:
            object.__setattr__(self, "name", f"xquant-int{self.bits}")
        found = []
        for layer in self.projections:
            if self._caches_input:
                found.append((joint_latent(layer),))
            else:
                key = Latent.of(layer.key, layer.key_bias)
                found.append((key, Latent.of(layer.value, layer.value_bias)))
        object.__setattr__(self, "latents", tuple(found))

    @property
    def _caches_input(self) -> bool:
        """Whether X is narrower than keys and values together."""
        return len(self.projections[0].key) < 2 * self.projections[0].key.shape[1]

    @property
    def bits_per_element(self) -> float:
        """Codes and scales of all layers over the elements of keys and values."""
        total = 0.0
        for latents in self.latents:
            total += latents[-1].rank * self._token_bits(latents[-1])
            if not self._caches_input:
                total += latents[0].rank * group_bits(self.bits, TOKEN_GROUP)
        return total / self.shape.elements_per_token

    def _token_bits(self, latent: Latent) -> float:
        return group_bits(self.bits, group_within(latent.rank, LARGEST_GROUP))

    def coded_end(self, past: int) -> int:
        """All whole groups of tokens before the window."""
        block = 1 if self._caches_input else TOKEN_GROUP
        return end_of_coded(past, self.sinks, self.window, block)

    def encode(
        self, keys_LHkTD: Sequence[Array], values_LHkTD: Sequence[Array], start: int
    ) -> list[list[Uniform]]:
        """What is held of each layer; arguments as of ``CacheCodec.rewrite``."""
        held = []
        plain = unrotate(keys_LHkTD, self.ropes, start)
        for latents, key, value in zip(self.latents, plain, values_LHkTD, strict=True):
            rows = [to_rows(key), to_rows(value)]
            if self._caches_input:
                rows = [np.concatenate(rows, axis=1)]
            *by_channel, by_token = (
                latent.encode(x) for latent, x in zip(latents, rows, strict=True)
            )
            codes = [quantise(x.T, self.bits, TOKEN_GROUP) for x in by_channel]
            group = group_within(by_token.shape[1], LARGEST_GROUP)
            held.append([*codes, quantise(by_token, self.bits, group)])
        return held

    def decode(
        self, held: Sequence[Sequence[Uniform]], start: int
    ) -> tuple[list[Array], list[Array]]:
        """Keys and values by layer ``[Hk, T, D]`` of what ``encode`` gave."""
        keys, values = [], []
        for latents, (*by_channel, by_token) in zip(self.latents, held, strict=True):
            read = [*(codes.read().T for codes in by_channel), by_token.read()]
            rows = [latent.decode(x) for latent, x in zip(latents, read, strict=True)]
            key, value = np.split(np.concatenate(rows, axis=1), 2, axis=1)
            keys.append(from_rows(key, self.shape.num_kv_heads))
            values.append(from_rows(value, self.shape.num_kv_heads))
        return unrotate(keys, self.ropes, start, back=True), values

    def rewrite(
        self, keys_LHkTD: Sequence[Array], values_LHkTD: Sequence[Array], start: int
    ) -> tuple[list[Array], list[Array]]:
        """Codes whole groups of tokens; see ``CacheCodec.rewrite``.

        Raises:
            PlanError: the tokens are not whole groups.
        """
        tokens = keys_LHkTD[0].shape[1]
        if not self._caches_input and tokens % TOKEN_GROUP:
            raise PlanError(f"XQuant codes whole groups of {TOKEN_GROUP} tokens, not {tokens}")
        return self.decode(self.encode(keys_LHkTD, values_LHkTD, start), start)

    def cache_bytes(self, context: int) -> int:
        """Codes and scales, and the exact tokens in fp16."""
        return bytes_of_context(self, self.shape, context)


def joint_latent(layer: Projection) -> Latent:
    """The part of X that keys and values together are made of."""
    weight = np.concatenate([layer.key, layer.value], axis=1)
    return Latent.of(weight, np.concatenate([layer.key_bias, layer.value_bias]))
