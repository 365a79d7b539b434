"""Spreads a budget of bytes over the codes of a model so that the predicted loss is least.

On convex curves the greedy choice, always the step that saves most loss per byte, is the best for
every budget that it reaches (Shoham and Gersho, Efficient Bit Allocation for an Arbitrary Set of
Quantizers, 1988).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from minicache.exporter.planner.rate_curve import RatePoint
from minicache.runtime.errors import PlanError


def spread(curves: Sequence[Sequence[RatePoint]], budget: int) -> list[RatePoint]:
    """Chooses one point of each curve.

    Args:
        curves: lower convex hulls, by ascending bytes.
        budget: most bytes of all chosen points together.

    Raises:
        PlanError: the smallest codes take more.
    """
    chosen = [0] * len(curves)
    left = budget - sum(curve[0].bytes for curve in curves)
    if left < 0:
        raise PlanError(
            f"{budget} bytes per token are too few: the smallest codes take {budget - left}; "
            "allow more bytes, larger groups (--max-group-size) or joint heads (--code-heads any)"
        )
    heap = [(-_slope(curve, 0), index) for index, curve in enumerate(curves) if len(curve) > 1]
    heapq.heapify(heap)
    while heap:
        _, index = heapq.heappop(heap)
        curve, at = curves[index], chosen[index]
        cost = curve[at + 1].bytes - curve[at].bytes
        if cost > left:
            continue  # a smaller step of another curve may still fit
        left -= cost
        chosen[index] = at + 1
        if at + 2 < len(curve):
            heapq.heappush(heap, (-_slope(curve, at + 1), index))
    return [curve[at] for curve, at in zip(curves, chosen, strict=True)]


def _slope(curve: Sequence[RatePoint], at: int) -> float:
    return (curve[at].loss - curve[at + 1].loss) / (curve[at + 1].bytes - curve[at].bytes)
