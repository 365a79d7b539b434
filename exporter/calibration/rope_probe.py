"""Finds each layer's RoPE by what it does to keys, whatever nodes compute it.

When every token of the text is the same and the attention output is replaced by zeros, the hidden
state no longer depends on the position, so that a layer's key is k(p) = R(p) k(0), R(p) being the
rotation by p positions (RoFormer, arXiv:2104.09864, Eq. 15). Rows of one batch stand at positions
1, 2, 4, 8, ...: each doubles the precision of the angle per position that the ones before gave, so
that it is never ambiguous by whole turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from minicache.exporter.calibration.exact_layers import ExactLayer, find_exact_layers
from minicache.exporter.probe import evaluate

Array = npt.NDArray[np.float64]

TOKENS = 4  # different tokens: a pair that one of them leaves at zero is measured by another
SHORT = 512  # positions below which every frequency set of a length-dependent RoPE is the first
# Relative error of k(p) that counts as "is this rotation". The angle p * f itself is computed in
# fp32 or read from a rounded table: 5e-4 at p = 8k.
TOLERANCE = {"fp32": 0.01, "fp16": 0.03}
# Change of k(p) that counts as "does not move at all".
STILL = {"fp32": 1e-4, "fp16": 1e-2}


@dataclass(frozen=True)
class Rope:
    """The rotary embedding of a layer's keys.

    Attributes:
        kind: ``rotary``; ``none`` (keys do not depend on the position); or ``unknown`` (they do,
            but not as one rotation per position: learned positions, frequencies that change with
            the length).
        frequencies: angle per position and pair, ``[D_rot / 2]``; empty unless ``rotary``.
        interleaved: pairs are (2i, 2i+1), not (i, i + D_rot/2).
        residual: largest relative error of R(p) k(0) over the probed positions.
    """

    kind: str
    frequencies: tuple[float, ...] = ()
    interleaved: bool = False
    residual: float = 0.0

    def same_as(self, other: Rope) -> bool:
        """Whether both rotate alike, up to the precision of the probe."""
        if self.kind != other.kind or self.interleaved != other.interleaved:
            return False
        if len(self.frequencies) != len(other.frequencies):
            return False
        return bool(np.allclose(self.frequencies, other.frequencies, rtol=1e-3, atol=1e-6))


def probe_positions(limit: int) -> list[int]:
    """Zero, the powers of two and some positions between them, all below ``limit``."""
    powers = [2**k for k in range(limit.bit_length()) if 2**k < limit]
    return sorted({0, *powers, *(p + p // 2 for p in powers if p + p // 2 < limit)})


def probe_rope(model: ir.Model, max_positions: int, one_row: bool = False) -> list[Rope]:
    """Finds the RoPE of every layer of an exact graph.

    Args:
        model: as ``normalise`` makes it, or loaded from an exact export's folder; unchanged.
        max_positions: positions that the model's tables reach.
        one_row: the graph takes batches of one row only.

    Returns:
        one ``Rope`` per layer. Equal frequencies of different layers are the same numbers.
    """
    layers = find_exact_layers(model)
    short = min(SHORT, max_positions)
    near = _keys(model, layers, probe_positions(short), one_row)
    far = _keys(model, layers, probe_positions(max_positions), one_row)
    ropes: list[Rope] = []
    dtype = "fp32"
    for index, layer in enumerate(layers):
        dtype = "fp32" if layer.operand(1).dtype in (None, ir.DataType.FLOAT) else "fp16"
        rope = fit_rope(far[index], probe_positions(max_positions), dtype)
        # A RoPE that switches by length rotates consistently in either run, but differently.
        if rope.kind == "rotary":
            error = _residual(near[index], probe_positions(short), rope)
            if error > TOLERANCE[dtype]:
                rope = Rope("unknown", residual=error)
        ropes.append(rope)
    return share_ropes(ropes, far, probe_positions(max_positions), dtype)


def share_ropes(
    ropes: Sequence[Rope], keys: Sequence[Array], positions: Sequence[int], dtype: str = "fp32"
) -> list[Rope]:
    """Gives all layers that one rotation explains the same numbers.

    A layer's keys may hold next to nothing in a pair (Gemma 3 scales keys by weights that are zero
    there), and what it says of that pair's frequency is then noise. Another layer knows it.

    Args:
        ropes: of each layer alone.
        keys: of each layer, as ``fit_rope`` takes them.
        positions: likewise.
        dtype: likewise.
    """
    classes: list[tuple[Rope, list[int]]] = []
    for index, rope in enumerate(ropes):
        for number, (known, members) in enumerate(classes):
            together = [*members, index]
            shared = known
            if rope.kind == known.kind == "rotary" and _alike(rope, known, keys, together):
                pooled = np.concatenate([keys[one] for one in together], axis=1)
                shared = _fit(pooled, positions, len(known.frequencies), known.interleaved)
                worst = max(_residual(keys[one], positions, shared) for one in together)
                if worst > TOLERANCE[dtype]:
                    continue
            elif not rope.same_as(known):
                continue
            classes[number] = shared, together
            break
        else:
            classes.append((rope, [index]))
    found = {index: rope for rope, members in classes for index in members}
    return [found[index] for index in range(len(ropes))]


def _alike(rope: Rope, known: Rope, keys: Sequence[Array], layers: Sequence[int]) -> bool:
    """Whether pairs are the same components, of vectors of the same size."""
    sizes = {keys[layer].shape[-1] for layer in layers}
    pairs = (rope.interleaved, len(rope.frequencies)) == (known.interleaved, len(known.frequencies))
    return pairs and len(sizes) == 1


def _keys(
    model: ir.Model, layers: Sequence[ExactLayer], positions: Sequence[int], one_row: bool
) -> list[Array]:
    """Keys by layer ``[P, tokens * Hk, D]`` with the attention output cut away."""
    inputs = {value.name: value for value in model.graph.inputs}
    rows = np.repeat(np.asarray(positions, np.int32), TOKENS)
    ids = np.tile(np.arange(TOKENS, dtype=np.int64), len(positions))[:, None]
    feeds: dict[ir.Value, np.ndarray] = {
        inputs["input_ids"]: ids,
        inputs["past_lengths"]: rows,
        inputs["total_lengths"]: rows + 1,
    }
    for layer in layers:
        width = layer.num_heads * layer.head_dim
        kind = layer.operand(0).dtype or ir.DataType.FLOAT
        feeds[layer.node.outputs[0]] = np.zeros((rows.size, 1, width), kind.numpy())
    keys = evaluate(model, [layer.operand(1) for layer in layers], feeds, one_row)
    return [
        array.astype(np.float64).reshape(len(positions), -1, layer.head_dim)
        for array, layer in zip(keys, layers, strict=True)
    ]


def fit_rope(keys: npt.NDArray[np.floating], positions: Sequence[int], dtype: str = "fp32") -> Rope:
    """Fits a rotation to keys at several positions.

    Args:
        keys: ``[P, vectors, D]``; vector v at position index 0 is the unrotated one.
        positions: P positions; they must hold 0, 1, 2, 4, ... up to their largest power of two.
        dtype: what the keys were computed in, ``fp32`` or ``fp16``.
    """
    known = np.asarray(keys, np.float64)
    size = known.shape[-1]
    still = Rope("rotary", (0.0,), residual=0.0)
    if (error := _residual(known, positions, still)) < STILL[dtype]:
        return Rope("none", residual=error)
    # A rotated pair keeps its length; that rules out nearly every wrong pairing at once.
    moving = np.sqrt(np.mean((known - known[:1]) ** 2, axis=(0, 1)))
    last = int(np.flatnonzero(moving > STILL[dtype] * moving.max())[-1]) + 1
    candidates = [(half, False) for half in range(1, size // 2 + 1) if 2 * half >= last]
    candidates.append((-(-last // 2), True))
    fits = [_fit(known, positions, half, interleaved) for half, interleaved in candidates]
    best = min(fits, key=lambda rope: rope.residual)
    return best if best.residual <= TOLERANCE[dtype] else Rope("unknown", residual=best.residual)


def _pairs(keys: Array, half: int, interleaved: bool) -> npt.NDArray[np.complex128]:
    """The rotated pairs as complex numbers ``[..., half]``."""
    rotated = keys[..., : 2 * half]
    if interleaved:
        return rotated[..., 0::2] + 1j * rotated[..., 1::2]
    return rotated[..., :half] + 1j * rotated[..., half:]


def _fit(keys: Array, positions: Sequence[int], half: int, interleaved: bool) -> Rope:
    pairs = _pairs(keys, half, interleaved)
    # [P, half]: the phase that turns k(0) into k(p), in the least squares sense over the vectors.
    phase = np.angle(np.sum(pairs * pairs[:1].conj(), axis=1))
    frequencies = np.zeros(half)
    for index, position in enumerate(positions):
        # Frequencies are below half a turn per position, so position 1 is not ambiguous.
        if position > 0 and position & (position - 1) == 0:
            turns = phase[index] - position * frequencies
            frequencies += np.angle(np.exp(1j * turns)) / position
    # The operator takes fp32 frequencies: the same numbers everywhere.
    rounded = frequencies.astype(np.float32).tolist()
    fitted = Rope("rotary", tuple(rounded), interleaved)
    residual = _residual(keys, positions, fitted)
    return Rope("rotary", fitted.frequencies, interleaved, residual)


def _residual(keys: Array, positions: Sequence[int], rope: Rope) -> float:
    """Largest relative error over positions of rotating k(0) instead of computing k(p)."""
    half = len(rope.frequencies)
    angle = np.outer(np.asarray(positions, np.float64), rope.frequencies)
    start = _pairs(keys[:1], half, rope.interleaved)
    moved = start * np.exp(1j * angle)[:, None]
    squares = np.sum(np.abs(moved - _pairs(keys, half, rope.interleaved)) ** 2, axis=(1, 2))
    squares += np.sum((keys - keys[:1])[..., 2 * half :] ** 2, axis=(1, 2))
    norm = float(np.sum(keys[0] ** 2))
    return float(np.sqrt(squares.max() / norm)) if norm > 0 else 0.0
