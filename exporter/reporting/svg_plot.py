"""Small plots as SVG text: axes, marks with interval bars, lines. Colours are the page's CSS.

Coordinates are those of a drawing ``WIDTH`` wide, which the page scales: at the width of a phone
its text is still readable.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from minicache.exporter.reporting.number_text import is_finite
from minicache.exporter.reporting.svg_labels import Box, LabelPlacer, Spot

WIDTH, HEIGHT = 440, 320
LEFT, RIGHT, TOP, BOTTOM = 52, 424, 28, 276  # of the plotting area
RADIUS = 4.5
SHAPES = {  # around 0, 0
    "circle": f'<circle r="{RADIUS}"/>',
    "square": '<path d="M-4-4H4V4H-4Z"/>',
    "diamond": '<path d="M0-6.5L6.5 0L0 6.5L-6.5 0Z"/>',
    "beyond": '<path d="M0-6L6 5H-6Z"/>',  # an arrow head: the value lies above the axis
}


@dataclass(frozen=True)
class Axis:
    """A scale.

    Attributes:
        label: name and unit.
        low: value at its start.
        high: value at its end.
        ticks: values and texts.
        log: logarithmic.
    """

    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    log: bool = False

    def place(self, value: float, start: float, end: float) -> float:
        """Coordinate of a value; what is outside lies on the border."""
        value = min(max(value, self.low), self.high)
        low, high = (math.log(x) if self.log else x for x in (self.low, self.high))
        share = ((math.log(value) if self.log else value) - low) / (high - low)
        return start + share * (end - start)


@dataclass(frozen=True)
class Mark:
    """A measured point.

    Attributes:
        x: finite.
        y: None, NaN and what is above the axis become an arrow head at the top.
        kind: CSS class.
        shape: a name of ``SHAPES``.
        title: shown by browsers on hover.
        label: written beside it.
        low: lower end of its interval; not drawn without both ends.
        high: upper end.
    """

    x: float
    y: float | None
    kind: str
    shape: str = "circle"
    title: str = ""
    label: str = ""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Line:
    """Points in order, joined; None leaves a gap."""

    points: tuple[tuple[float, float | None], ...]
    kind: str


def draw(
    title: str,
    x: Axis,
    y: Axis,
    *,
    marks: Sequence[Mark] = (),
    lines: Sequence[Line] = (),
    references: Sequence[tuple[float, str]] = (),
) -> str:
    """One plot as an ``svg`` element.

    Args:
        title: what it shows, for screen readers.
        x: horizontal scale.
        y: vertical scale.
        marks: drawn in order, the last on top.
        lines: drawn below the marks.
        references: values of y with a dashed line and what they stand for.
    """
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        *_axes(x, y),
    ]
    spots = [_spot(mark, x, y) for mark in marks]
    drawn = [_mark(mark, spot, y) for mark, spot in zip(marks, spots, strict=True)]
    placer = LabelPlacer((LEFT, TOP, RIGHT, BOTTOM), map(_box, marks, spots, [y] * len(marks)))
    labels = []
    for value, text in references:
        if y.low < value < y.high:
            at = y.place(value, BOTTOM, TOP)
            parts.append(f'<path class="reference" d="M{LEFT} {at:.1f}H{RIGHT}"/>')
            ends = (RIGHT, "end"), (LEFT + 4, "start"), ((LEFT + RIGHT) / 2, "middle")
            places = [Spot(end, at + row, anchor) for end, anchor in ends for row in (-4.0, 13.0)]
            labels.append(_text(placer.best(text, places, at), text, "reference"))
    for mark, spot in zip(marks, spots, strict=True):
        if mark.label:
            place = placer.beside(mark.label, *spot)
            labels.append(_text(place, mark.label, f"label {mark.kind}"))
    parts += [_line(line, x, y) for line in lines]
    return "".join([*parts, *drawn, *labels, "</svg>"])


def _text(place: Spot, text: str, kind: str) -> str:
    where = f'x="{place.x:.1f}" y="{place.y:.1f}" text-anchor="{place.anchor}"'
    return f'<text class="{kind}" {where}>{escape(text)}</text>'


def _axes(x: Axis, y: Axis) -> list[str]:
    parts = []
    for value, text in y.ticks:
        at = y.place(value, BOTTOM, TOP)
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{RIGHT}"/>')
        parts.append(_text(Spot(LEFT - 7, at + 4, "end"), text, "tick"))
    for value, text in x.ticks:
        at = x.place(value, LEFT, RIGHT)
        parts.append(f'<path class="axis" d="M{at:.1f} {BOTTOM}v5"/>')
        parts.append(_text(Spot(at, BOTTOM + 18, "middle"), text, "tick"))
    parts.append(f'<path class="axis" d="M{LEFT} {BOTTOM}H{RIGHT}"/>')
    parts.append(_text(Spot((LEFT + RIGHT) / 2, HEIGHT - 8, "middle"), x.label, "name"))
    # Above the axis and not turned: easier to read, and no wider than the plot.
    parts.append(_text(Spot(0, 11, "start"), y.label, "name"))
    return parts


def _beyond(mark: Mark, y: Axis) -> bool:
    return not is_finite(mark.y) or mark.y > y.high


def _spot(mark: Mark, x: Axis, y: Axis) -> tuple[float, float]:
    value = y.high if _beyond(mark, y) or mark.y is None else mark.y
    lift = 7 if _beyond(mark, y) else 0  # the whole arrow head within the plot
    return x.place(mark.x, LEFT, RIGHT), y.place(value, BOTTOM, TOP) + lift


def _box(mark: Mark, spot: tuple[float, float], y: Axis) -> Box:
    """What a mark and its interval cover."""
    ends = [spot[1] - 6, spot[1] + 6]
    if not _beyond(mark, y):
        ends += [y.place(end, BOTTOM, TOP) for end in (mark.low, mark.high) if is_finite(end)]
    return spot[0] - 6, min(ends), spot[0] + 6, max(ends)


def _mark(mark: Mark, spot: tuple[float, float], y: Axis) -> str:
    beyond = _beyond(mark, y)
    shape = SHAPES["beyond" if beyond else mark.shape]
    title = f"<title>{escape(mark.title)}</title>" if mark.title else ""
    bar = ""
    if is_finite(mark.low) and is_finite(mark.high) and not beyond:
        ends = (y.place(end, BOTTOM, TOP) - spot[1] for end in (mark.low, mark.high))
        low, high = (f"{end:.1f}" for end in ends)
        bar = f'<path class="bar" d="M-4 {low}h8M-4 {high}h8M0 {low}V{high}"/>'
    where = f"translate({spot[0]:.1f} {spot[1]:.1f})"
    return f'<g class="mark {mark.kind}" transform="{where}">{title}{bar}{shape}</g>'


def _line(line: Line, x: Axis, y: Axis) -> str:
    steps, dots, joined = [], [], False
    for across, up in line.points:
        if not is_finite(up):
            joined = False
            continue
        at = f"{x.place(across, LEFT, RIGHT):.1f} {y.place(up, BOTTOM, TOP):.1f}"
        steps.append(("L" if joined else "M") + at)
        dots.append(f'<circle r="2" transform="translate({at})"/>')
        joined = True
    return f'<g class="line {line.kind}"><path d="{"".join(steps)}"/>{"".join(dots)}</g>'
