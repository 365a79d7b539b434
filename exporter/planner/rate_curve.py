"""Predicted loss of a group's keys or values against the bytes that their code takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minicache.exporter import schemas
from minicache.exporter.calibration.allocation import MAGNITUDE_BITS
from minicache.exporter.calibration.klt import Basis
from minicache.runtime.errors import PlanError

MOST_BITS = 8.5
POINTS = 48


@dataclass(frozen=True)
class RatePoint:
    """One layout of a code.

    Attributes:
        bytes: per token, all code heads, magnitudes included.
        loss: expected error in nats of KL per token (see ``sensitivity``).
        bits: per element: the budget that gives this layout.
    """

    bytes: int
    loss: float
    bits: float


def rate_curve(basis: Basis, code_heads: int) -> list[RatePoint]:
    """The lower convex hull of the layouts of a basis, by ascending bytes.

    Raises:
        PlanError: the group's vectors are too small for any code.
    """
    elements = basis.vectors.shape[1]
    smallest = schemas.code_bytes((2, 8))
    largest = max(smallest, int(MOST_BITS * elements / 8))
    sizes = np.unique(np.geomspace(smallest, largest, POINTS).astype(int) // 4 * 4)
    points = []
    for size in sizes:
        budget = (8 * int(size) + MAGNITUDE_BITS) / elements
        try:
            layout = basis.allocate(budget)
        except PlanError:
            continue
        used = schemas.code_bytes(layout.bits)
        bits = (8 * used + MAGNITUDE_BITS) / elements
        total = code_heads * (used + MAGNITUDE_BITS // 8)
        points.append(RatePoint(total, layout.distortion * basis.energy, bits))
    if not points:
        raise PlanError(f"vectors of {elements} elements are too small to be coded")
    return _hull(points)


def _hull(points: list[RatePoint]) -> list[RatePoint]:
    """Those points that some price per byte makes the best."""
    best: dict[int, RatePoint] = {}
    for point in points:
        if point.bytes not in best or point.loss < best[point.bytes].loss:
            best[point.bytes] = point
    hull: list[RatePoint] = []
    for point in sorted(best.values(), key=lambda point: point.bytes):
        if hull and point.loss >= hull[-1].loss:
            continue
        while len(hull) > 1 and _gain(hull[-2], hull[-1]) <= _gain(hull[-1], point):
            hull.pop()
        hull.append(point)
    return hull


def _gain(low: RatePoint, high: RatePoint) -> float:
    """Loss saved per byte."""
    return (low.loss - high.loss) / (high.bytes - low.bytes)
