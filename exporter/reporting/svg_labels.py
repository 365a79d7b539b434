"""Where labels go: beside their mark, off other marks and labels, inside the plot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

Box = tuple[float, float, float, float]  # left, top, right, bottom

CHARACTER, LINE = 6.8, 12.0  # of the label's font, on the wide side
GAP = 10.0  # from the centre of a mark


class Spot(NamedTuple):
    """Where a label's text is written.

    Attributes:
        x: of its anchor.
        y: of its base line.
        anchor: ``start``, ``middle`` or ``end``, as SVG says.
    """

    x: float
    y: float
    anchor: str

    def box(self, label: str) -> Box:
        """What the label covers."""
        width = CHARACTER * len(label)
        left = self.x - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[self.anchor]
        return left, self.y - LINE + 2, left + width, self.y + 2


class LabelPlacer:
    """Places one label after the other.

    Args:
        area: labels stay within it.
        taken: boxes to keep off.
    """

    def __init__(self, area: Box, taken: Iterable[Box]) -> None:
        self._area = area
        self._taken = list(taken)

    def beside(self, label: str, x: float, y: float) -> Spot:
        """Places a label near a mark: right of it if that is free, else left, above or below."""
        rows = (4.0, -8.0, 16.0, -20.0, 28.0, 40.0, -32.0)  # base lines, from the mark
        spots = [Spot(x + GAP, y + row, "start") for row in rows]
        spots += [Spot(x - GAP, y + row, "end") for row in rows]
        spots += [Spot(x, y + row, "middle") for row in (-GAP, GAP + LINE, 34.0, -24.0)]
        return self.best(label, spots, y)

    def best(self, label: str, spots: Sequence[Spot], y: float) -> Spot:
        """The first of the least covered spots; of those, what is closest to the height ``y``."""
        chosen = min(spots, key=lambda spot: self._cost(spot.box(label), y))
        self._taken.append(chosen.box(label))
        return chosen

    def _cost(self, box: Box, y: float) -> float:
        """Covered square pixels, most of all those outside the plot, then the distance."""
        covered = sum(_overlap(box, other) for other in self._taken)
        whole = (box[2] - box[0]) * (box[3] - box[1])
        outside = whole - _overlap(box, self._area)
        return covered + 10 * outside + abs((box[1] + box[3]) / 2 - y) / 100


def _overlap(a: Box, b: Box) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    return max(width, 0.0) * max(height, 0.0)
