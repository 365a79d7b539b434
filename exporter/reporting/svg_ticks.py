"""Axes with round tick values."""

from __future__ import annotations

import math
from collections.abc import Callable

from minicache.exporter.reporting.svg_plot import Axis

FEWEST, MOST = 3, 7  # ticks: fewer tell no scale, more do not fit


def linear_axis(label: str, low: float, high: float, write: Callable[[float, float], str]) -> Axis:
    """An axis from ``low`` to ``high`` with about five ticks.

    Args:
        label: name and unit.
        low: start.
        high: end, above it.
        write: text of a tick value; its second argument is the step.
    """
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * unit for unit in (1, 2, 2.5, 5, 10) if power * unit >= 0.999 * rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    ticks = tuple((n * step, write(n * step, step)) for n in range(first, last + 1))
    return Axis(label, low, high, ticks)


def log_axis(label: str, low: float, high: float, write: Callable[[float], str]) -> Axis:
    """A logarithmic axis: as many of the round values as fit, decades first.

    Args:
        label: name and unit.
        low: start, above 0.
        high: end, above it.
        write: text of a tick value.
    """
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for units in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 2.0, 3.0, 4.0, 6.0, 8.0)):
        # From the exponent's text: 10.0**-3 * 3 would not be 0.003.
        values = [float(f"{unit}e{exponent}") for exponent in exponents for unit in units]
        inside = [value for value in values if low <= value <= high]
        if ticks and len(inside) > MOST:
            break
        ticks = inside[:: max(1, -(-len(inside) // MOST))]
    if len(ticks) < FEWEST:  # over a short stretch a logarithm is nearly linear
        ticks = [tick for tick, _ in linear_axis(label, low, high, lambda *_: "").ticks]
    return Axis(label, low, high, tuple((tick, write(tick)) for tick in ticks), log=True)
