"""Small caches, projections and RoPEs for the tests of rival methods."""

from __future__ import annotations

import numpy as np

from benchmarks.rivals.projections import Projection
from minicache.exporter.baselines.cache_shape import CacheShape
from minicache.exporter.calibration.rope_probe import Rope

LAYERS, HEADS, SIZE = 5, 2, 64
SHAPE = CacheShape(LAYERS, HEADS, SIZE)
ROPE = Rope("rotary", tuple(1.0 / 100 ** (np.arange(SIZE // 2) / (SIZE // 2))))
ROPES = (ROPE,) * LAYERS


def cache(tokens: int, seed: int = 0) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Random keys and values by layer ``[Hk, T, D]``."""
    rng = np.random.default_rng(seed)
    keys, values = rng.standard_normal((2, LAYERS, HEADS, tokens, SIZE)).astype(np.float32)
    return list(keys), list(values)


def projections(width: int, seed: int = 1) -> tuple[Projection, ...]:
    """Random projections of inputs of ``width`` numbers."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(LAYERS):
        weights = rng.standard_normal((2, width, HEADS * SIZE)) / np.sqrt(width)
        biases = 0.1 * rng.standard_normal((2, HEADS * SIZE))
        parts = (*weights, *biases, rng.uniform(0.5, 2, width))
        found.append(Projection(*(part.astype(np.float32) for part in parts)))
    return tuple(found)


def error(found: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    """Relative root mean square over all layers."""
    both = np.stack(found), np.stack(wanted)
    return float(np.linalg.norm(both[0] - both[1]) / np.linalg.norm(both[1]))
