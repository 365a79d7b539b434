"""Static integer cache: what ONNX Runtime's GroupQueryAttention offers (``k_scale``, ``v_scale``).

Source: the operator's PER_CHANNEL mode with ``kv_cache_bit_width`` 8 and 4, as its CPU kernel of
ONNX Runtime 1.32 computes it: k = clamp(round half to even(x / scale), -2^(b-1), 2^(b-1) - 1), read
back as k * scale, for every token, the call's own included; sums are in fp32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from minicache.exporter.baselines.cache_codec import check_exact_part, end_of_coded
from minicache.exporter.baselines.cache_shape import CacheShape
from minicache.runtime.errors import PlanError

Array = npt.NDArray[Any]
Clip = Literal["largest", "least-squares"]

BITS = (8, 4)  # what the operator has
# Shares of the largest magnitude that are tried as clip point: 4 bit gains from cutting tails.
CLIP_SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
SMALLEST_SCALE = 1e-8
SCALE_BYTES = 4  # the operator takes fp32 scales


@dataclass(frozen=True)
class StaticInteger:
    """Symmetric integers with one fixed scale per layer, kv head and channel.

    Of the layers of full attention, as all codecs here: exact rings hold the rest.

    The operator has neither sinks nor a window (both 0); given ones show what they would bring it.

    Attributes:
        bits: 8 or 4.
        key_scales: by layer, fp32 ``[Hk, D]``.
        value_scales: likewise.
        sinks: first tokens, kept exact.
        window: recent tokens, kept exact.
        name: for tables.
    """

    bits: int
    key_scales: tuple[Array, ...]
    value_scales: tuple[Array, ...]
    sinks: int = 0
    window: int = 0
    name: str = "static-int"

    def __post_init__(self) -> None:
        _check_bits(self.bits)
        check_exact_part(self.sinks, self.window)

    @staticmethod
    def fit(
        keys_LnHkD: Sequence[Array],
        values_LnHkD: Sequence[Array],
        bits: int,
        *,
        sinks: int = 0,
        window: int = 0,
        clip: Clip = "least-squares",
        name: str | None = None,
    ) -> StaticInteger:
        """Chooses the scales from a sample.

        Args:
            keys_LnHkD: by layer, post-RoPE keys ``[n, Hk, D]``.
            values_LnHkD: likewise values.
            bits: 8 or 4.
            sinks: first tokens that will stay exact; leave them out of the sample, too.
            window: recent tokens that will stay exact.
            clip: the largest magnitude fits (``largest``), or the share of it with the least
                squared error of the channel (``least-squares``).
            name: for tables; None: ``static-int{bits}``.

        Raises:
            PlanError: ``bits``, ``sinks`` or ``window`` is out of range, or the sample is empty.
        """
        _check_bits(bits)
        scales = [
            tuple(fit_scales(vectors, bits, clip) for vectors in layers)
            for layers in (keys_LnHkD, values_LnHkD)
        ]
        return StaticInteger(bits, scales[0], scales[1], sinks, window, name or f"static-int{bits}")

    @property
    def bits_per_element(self) -> float:
        """``bits``: the scales do not grow with the tokens."""
        return float(self.bits)

    def coded_end(self, past: int) -> int:
        """All but the window."""
        return end_of_coded(past, self.sinks, self.window)

    def rewrite(
        self, keys_LHkTD: Sequence[Array], values_LHkTD: Sequence[Array], start: int
    ) -> tuple[list[Array], list[Array]]:
        """Rounds every element to its grid; see ``CacheCodec.rewrite``."""
        pairs = (keys_LHkTD, self.key_scales), (values_LHkTD, self.value_scales)
        rounded = [
            [round_static(x, scale[:, None], self.bits) for x, scale in zip(*pair, strict=True)]
            for pair in pairs
        ]
        return rounded[0], rounded[1]

    def cache_bytes(self, context: int) -> int:
        """Codes, fp32 scales, and the exact tokens in fp16."""
        heads, size = (int(n) for n in self.key_scales[0].shape)
        shape = CacheShape(len(self.key_scales), heads, size)
        coded = max(min(self.coded_end(context), context) - self.sinks, 0)
        # Two 4-bit codes of one head share a byte.
        row = (self.bits * size + 7) // 8 * (shape.elements_per_token // size)
        scales = SCALE_BYTES * shape.elements_per_token
        return coded * row + scales + shape.fp16_bytes(context - coded)


def fit_scales(vectors_nHkD: Array, bits: int, clip: Clip) -> Array:
    """Scales ``[Hk, D]`` of a sample ``[n, Hk, D]``.

    Raises:
        PlanError: the sample is empty.
    """
    if not len(vectors_nHkD):
        raise PlanError("static scales need a sample of at least one token")
    sample = np.asarray(vectors_nHkD, np.float32)
    largest = np.abs(sample).max(axis=0)
    whole: Array = np.maximum(largest / (2 ** (bits - 1) - 1), SMALLEST_SCALE)
    if clip == "largest":
        return whole
    best, least = whole, np.full(whole.shape, np.inf)
    for share in CLIP_SHARES:
        scale = np.maximum(share * whole, SMALLEST_SCALE)
        error = np.square(round_static(sample, scale, bits) - sample).mean(axis=0)
        best, least = np.where(error < least, scale, best), np.minimum(error, least)
    return best


def round_static(x: Array, scale: Array, bits: int) -> Array:
    """``x`` on the grid of ``scale`` (broadcast against it), fp32."""
    top = 2 ** (bits - 1)
    levels = np.rint(np.asarray(x, np.float32) / scale)
    np.clip(levels, -top, top - 1, out=levels)
    return np.asarray(levels * scale, np.float32)


def _check_bits(bits: int) -> None:
    if bits not in BITS:
        raise PlanError(f"a static integer cache of {bits} bit is unknown; give one of {BITS}")
