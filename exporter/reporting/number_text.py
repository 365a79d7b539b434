"""How reports write numbers: the same on the terminal and in HTML, units always named.

What was not measured, or is no finite number, is a dash: a table must not break over one cell.
"""

from __future__ import annotations

import math
from typing import Any, TypeGuard

MISSING = "-"


def is_finite(value: Any) -> TypeGuard[float]:
    """Whether ``value`` is a number that can be drawn or compared."""
    return isinstance(value, (int, float)) and math.isfinite(value)


def finite(value: Any) -> Any:
    """Copies JSON-like data with None for NaN and infinity, which JSON has no word for."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def plain(value: Any, digits: int = 2) -> str:
    """A number with fixed decimals."""
    return f"{value:.{digits}f}" if is_finite(value) else MISSING


def smaller(value: Any) -> str:
    """How many times smaller: ``4.87 x``."""
    return f"{value:.2f} x" if is_finite(value) else MISSING


def factor(value: Any) -> str:
    """What a perplexity is multiplied by: ``x 1.003``; what is far from 1 needs no decimals."""
    if not is_finite(value):
        return MISSING
    return f"x {value:.3f}" if abs(value) < 10 else f"x {value:.3g}"


def interval(low: Any, high: Any) -> str:
    """Both ends of an interval: ``1.001 to 1.005``; a dash if an end is open or unknown."""
    if not (is_finite(low) and is_finite(high)):
        return MISSING
    low, high = (factor(end).removeprefix("x ") for end in (low, high))
    return f"{low} to {high}"


def percent(value: Any) -> str:
    """A share: ``98.1 %``."""
    return f"{100 * value:.1f} %" if is_finite(value) else MISSING


def nats(value: Any) -> str:
    """A KL divergence, without unit: four decimals, or two digits of what would vanish in them."""
    if not is_finite(value):
        return MISSING
    return f"{value:.4f}" if value == 0 or abs(value) >= 1e-3 else scientific(value)


def scientific(value: Any) -> str:
    """A difference of any magnitude: ``1.2e-05``."""
    return f"{value:.1e}" if is_finite(value) else MISSING


def size(value: Any) -> str:
    """Bytes in decimal units: ``1.25 MB``."""
    if not is_finite(value):
        return MISSING
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= unit:
            return f"{value / unit:.2f} {name}"
    return f"{value:.0f} bytes"


def count(value: Any) -> str:
    """A whole number with thousands apart: ``8 192``."""
    return f"{value:,.0f}".replace(",", "\N{NO-BREAK SPACE}") if is_finite(value) else MISSING
