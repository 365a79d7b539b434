"""The codec of a group, in the arrays that the operator takes (docs/operator.md, subspace)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from minicache.exporter.calibration.allocation import bits_per_element
from minicache.exporter.calibration.group_tables import reading_arrays, reading_attributes
from minicache.exporter.calibration.half_tables import rounded_to_halves
from minicache.exporter.calibration.klt import TINY, Basis
from minicache.exporter.calibration.quantiser import WIDTHS, fit_quantiser, quantised
from minicache.exporter.calibration.rope_probe import Rope
from minicache.exporter.calibration.rotation import rotate, segment_offset

Array = npt.NDArray[Any]

MAGNITUDE_LIMIT = 65504.0  # fp16
SMALLEST_STEP = 1e-9


class ProxyLoss(NamedTuple):
    """What a codec is expected to lose, from the calibration alone.

    Attributes:
        key_relative: squared error of the metric-weighted keys, as a share of their energy.
        value_relative: likewise for values.
        score_error: mean squared error of attention scores, summed over the group's kv heads.
        output_error: mean squared error in the residual stream of a value read alone, likewise.
    """

    key_relative: float
    value_relative: float
    score_error: float
    output_error: float


@dataclass(frozen=True)
class Code:
    """How a group's keys, or its values, are coded.

    Attributes:
        bits: segments ``bits, count, ...``.
        encoder: ``[Hc, R, G * J * D]`` fp32, halves where fp16 holds them.
        step: ``[Hc, R]`` fp32.
        decoder: ``[G, Hk, R, D]`` fp32, halves where fp16 holds them; head h of a layer reads the
            code head of its slot.
        permutation: ``[G][Hk]``: the head of a layer in each slot.
        distortion: expected squared error of unit directions.
    """

    bits: tuple[int, ...]
    encoder: Array
    step: Array
    decoder: Array
    permutation: tuple[tuple[int, ...], ...]
    distortion: float

    @property
    def bits_per_element(self) -> float:
        """Bits per element: padding and magnitude included."""
        return bits_per_element(self.bits, self.encoder.shape[2])

    def encode(self, vectors: Array) -> tuple[Array, Array]:
        """Codes vectors ``[T, G, Hk, D]`` as the operator does.

        Returns:
            level values k - (2^b - 1) / 2 ``[T, Hc, R]`` and magnitudes ``[T, Hc]`` fp16.
        """
        tokens, group, heads, size = vectors.shape
        code_heads = len(self.encoder)
        order = np.asarray(self.permutation)
        slots = np.stack([vectors[:, g, order[g]] for g in range(group)], axis=1)
        joined = slots.reshape(tokens, group, code_heads, heads // code_heads, size)
        x = joined.transpose(2, 0, 1, 3, 4).reshape(code_heads, tokens, -1).astype(np.float32)
        y = np.swapaxes(x @ np.swapaxes(self.encoder, 1, 2), 0, 1)  # [T, Hc, R]
        magnitude = np.linalg.norm(y, axis=2)
        unit = y / np.maximum(magnitude, TINY)[..., None]
        widths = np.repeat(self.bits[0::2], self.bits[1::2])
        levels = np.zeros_like(unit)
        for width in WIDTHS:
            at = widths == width
            levels[..., at] = quantised(unit[..., at], self.step[:, at], width)
        return levels, np.minimum(magnitude, MAGNITUDE_LIMIT).astype(np.float16)

    def decode(self, levels: Array, magnitude: Array) -> Array:
        """Restores ``[T, G, Hk, D]`` from what ``encode`` returned."""
        group, heads = self.decoder.shape[:2]
        code_heads = len(self.encoder)
        restored = np.empty((len(levels), group, heads, self.decoder.shape[3]), np.float32)
        scaled = levels * magnitude.astype(np.float32)[..., None]
        for g, order in enumerate(self.permutation):
            for slot, head in enumerate(order):
                restored[:, g, head] = scaled[:, slot * code_heads // heads] @ self.decoder[g, head]
        return restored


@dataclass(frozen=True)
class SubspaceCodec:
    """The codec of a group of layers.

    Attributes:
        layers: the group.
        key: code of the keys.
        value: code of the values.
        rope: of the group's keys.
        segment_length: positions L of a segment; 0: keys are coded as they are.
    """

    layers: tuple[int, ...]
    key: Code
    value: Code
    rope: Rope
    segment_length: int

    def attributes(self) -> dict[str, Any]:
        """Attributes of the group's nodes, by the names of ``schemas``."""
        permutations = {"key": self.key.permutation, "value": self.value.permutation}
        return {
            "mode": "subspace",
            "group_size": len(self.layers),
            "code_heads": len(self.key.encoder),
            "key_bits": self.key.bits,
            "value_bits": self.value.bits,
            **reading_attributes(self.rope, self.segment_length, **permutations),
        }

    def arrays(self, slot: int, decoder_dtype: npt.DTypeLike = np.float32) -> dict[str, Array]:
        """Constant inputs of the node of one slot, by the names of ``schemas``, in its order."""
        decoders = self.key.decoder[slot], self.value.decoder[slot]
        found = reading_arrays(*decoders, self.rope, self.segment_length, decoder_dtype)
        if slot == len(self.layers) - 1:
            found |= {
                "key_encoder": self.key.encoder,
                "key_step": self.key.step,
                "value_encoder": self.value.encoder,
                "value_step": self.value.step,
            }
        return found

    def restore_keys(self, keys: Array, positions: Array) -> Array:
        """Keys ``[T, G, Hk, D]`` at ``positions`` ``[T]`` as they are read back from the cache."""
        offset = segment_offset(positions, self.segment_length)[:, None, None]
        keys = np.asarray(keys, np.float32)  # the operator turns keys of an fp16 model in fp32, too
        relative = rotate(keys, -offset, self.rope) if self.segment_length else keys
        restored = self.key.decode(*self.key.encode(relative))
        return rotate(restored, offset, self.rope) if self.segment_length else restored

    def restore_values(self, values: Array) -> Array:
        """Values ``[T, G, Hk, D]`` as they are read back from the cache."""
        return self.value.decode(*self.value.encode(values))


def fit_code(basis: Basis, budget: float) -> Code:
    """Makes the code of a basis within a budget of bits per element.

    Raises:
        PlanError: the budget is too small.
    """
    layout = basis.allocate(budget)
    count, widths = layout.components, layout.widths
    code_heads = len(basis.vectors)
    group, heads, size = basis.roots.shape[:3]
    joined = heads // code_heads
    order = np.asarray(basis.permutation)
    encoder = np.empty((code_heads, count, group * joined * size), np.float32)
    decoder = np.empty((group, heads, count, size), np.float32)
    steps = np.empty((code_heads, count), np.float32)
    for head in range(code_heads):
        y = basis.samples[head][:, :count]
        # The operator's direction is that of the stored components alone.
        length = np.linalg.norm(y, axis=1)
        unit = y / np.maximum(length, TINY)[:, None]
        gain = np.empty(count)
        for width in WIDTHS:
            at = widths == width
            if at.any():
                fit = fit_quantiser(unit[:, at], width)
                steps[head, at], gain[at] = np.maximum(fit.step, SMALLEST_STEP), fit.gain
        # Magnitudes are fp16: their mean becomes 1.
        mean = float(length.mean()) or 1.0
        factor = (gain * steps[head] * mean)[:, None]
        blocks = basis.vectors[head][:, :count].reshape(group, joined, size, count)
        for g in range(group):
            for j in range(joined):
                own = order[g, head * joined + j]
                start = (g * joined + j) * size
                rows = blocks[g, j].T  # [R, D]
                encoder[head, :, start : start + size] = rows @ basis.roots[g, own] / mean
                decoder[g, own] = factor * (rows @ basis.inverse_roots[g, own])
    encoder, decoder = rounded_to_halves(encoder), rounded_to_halves(decoder)
    return Code(layout.bits, encoder, steps, decoder, basis.permutation, layout.distortion)
