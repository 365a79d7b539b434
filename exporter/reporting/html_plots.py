"""The plots of ``report.html``, made from the report's content."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from minicache.exporter.reporting import number_text as text
from minicache.exporter.reporting.svg_plot import Axis, Line, Mark, draw
from minicache.exporter.reporting.svg_ticks import linear_axis, log_axis

FP16_BITS = 16
RATIO_NAME = "compression of the coded part, to fp16 (log scale)"
LEAST_KL = 1e-9  # below it, and at 0, a mark lies at the bottom of the logarithmic axis


def frontier_plots(content: dict[str, Any]) -> list[str]:
    """Perplexity ratio and KL against compression: the search's plans, the export, its rivals."""
    drawn = _marks(content, "perplexity_ratio"), _marks(content, "kl")
    if not drawn[0]:
        return []
    ratios = _ratio_axis([mark.x for mark in drawn[0]])
    axes = _perplexity_axis(drawn[0]), _kl_axis(drawn[1])
    names = "Perplexity ratio against compression", "KL against compression"
    references: list[list[tuple[float, str]]] = [[(1.01, "+1 %")], []]
    return [
        draw(
            name, ratios, axis, marks=[_with_value(mark, axis) for mark in marks], references=lines
        )
        for name, axis, marks, lines in zip(names, axes, drawn, references, strict=True)
    ]


def similarity_plot(pairs: Sequence[dict[str, Any]]) -> str:
    """Cosine of adjacent layers over depth, keys and values; empty without data."""
    rows = [(pair["layers"][0], pair["key_cosine"], pair["value_cosine"]) for pair in pairs]
    found = [value for row in rows for value in row[1:] if text.is_finite(value)]
    if not found:
        return ""
    first, last = rows[0][0], max(rows[-1][0], rows[0][0] + 1)
    depth = linear_axis("lower layer of the pair", first, last, lambda value, _: f"{value:.0f}")
    whole = tuple(tick for tick in depth.ticks if float(tick[0]).is_integer())
    lowest = min(0.0, *found)
    return draw(
        "Cosine of adjacent layers over depth",
        Axis(depth.label, first, last, whole),
        linear_axis("mean cosine", lowest - 0.02 * (lowest < 0), 1.0, _decimals),
        lines=[
            Line(tuple((row[0], row[column]) for row in rows), kind)
            for column, kind in ((1, "keys"), (2, "values"))
        ],
    )


def _marks(content: dict[str, Any], measure: str) -> list[Mark]:
    """The chosen plan and the export last, so that they lie on top."""
    points = sorted(content.get("frontier", []), key=lambda point: bool(point["chosen"]))
    found = [_search_mark(point, measure) for point in points]
    rows = [(rival["name"], rival, "rival", "square") for rival in content.get("rivals", [])]
    quality = content.get("quality")
    if quality and quality["perplexity_ratio"] is not None:
        rows.append(("this export", quality, "export", "diamond"))
    key = "kl_mean" if measure == "kl" else measure
    for name, row, kind, shape in rows:
        if text.is_finite(row["bits_per_element"]) and row["bits_per_element"] > 0:
            # At the context the export has exact sinks and a window, which the plans have not.
            ratio = FP16_BITS / row["bits_per_element"]
            found.append(_mark(ratio, row, key, kind, shape, name, name))
    return found


def _search_mark(point: dict[str, Any], measure: str) -> Mark:
    kind = "search chosen" if point["chosen"] else "search"
    name = f"{point['structure']}, {text.plain(point['bits_per_element'])} bits"
    return _mark(point["ratio"], point, measure, kind, "circle", name, "")


def _mark(
    ratio: float, row: dict[str, Any], key: str, kind: str, shape: str, name: str, label: str
) -> Mark:
    perplexity = key == "perplexity_ratio"
    value = row[key]
    number = text.factor(value) if perplexity else f"KL {text.nats(value)}"
    low, high = (row[f"{key}_{end}"] if perplexity else None for end in ("low", "high"))
    bounds = text.interval(low, high)
    title = f"{name}: {text.smaller(ratio)} smaller, {number}"
    if bounds != text.MISSING:
        title += f" (95 % interval {bounds})"
    return Mark(ratio, value, kind, shape, title, label, low, high)


def _with_value(mark: Mark, axis: Axis) -> Mark:
    """Where the place of a mark does not tell its value, its label does."""
    if text.is_finite(mark.y) and mark.y > axis.high:
        return dataclasses.replace(mark, label=f"{mark.label} {text.factor(mark.y)}".strip())
    return mark


def _ratio_axis(ratios: Sequence[float]) -> Axis:
    low, high = min(ratios) / 1.2, max(ratios) * 1.2
    return log_axis(RATIO_NAME, low, high, lambda value: f"{value:g} x")


def _perplexity_axis(marks: Sequence[Mark]) -> Axis:
    """Around what the export and the search reach: a rival that fails would flatten all others."""
    own = [mark for mark in marks if mark.kind in ("export", "search chosen")] or list(marks)
    highest = max(_finite([mark.high for mark in own] + [mark.y for mark in own]), default=1.0)
    everything = _finite([end for mark in marks for end in (mark.low, mark.y, mark.high)])
    most = max([1.02, *everything])
    top = min(most, max(1.05, 1 + 4 * (highest - 1)))
    low = max(min([1.0, *everything]), 1 - (top - 1), 0.5)
    if top > 3:
        name = "perplexity ratio (log scale)"
        return log_axis(name, low / 1.2, 1.2 * top, lambda value: f"{value:g}")
    room = 0.06 * (top - low)
    return linear_axis("perplexity ratio", low - room, top + room, _decimals)


def _kl_axis(marks: Sequence[Mark]) -> Axis:
    positive = [value for value in _finite([mark.y for mark in marks]) if value > LEAST_KL]
    low, high = min(positive, default=1e-3), max(positive, default=1e-2)
    return log_axis(
        "KL, nats per token (log scale)", low / 1.6, high * 1.6, lambda value: f"{value:g}"
    )


def _finite(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if text.is_finite(value)]


def _decimals(value: float, step: float) -> str:
    digits = next(digits for digits in range(1, 9) if abs(step - round(step, digits)) < 1e-9)
    return f"{value + 0.0:.{digits}f}"
