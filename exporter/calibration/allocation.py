"""Chooses how many components of a code get 8, 4, 2 or no bits, within a budget of bytes.

Reverse water-filling (Cover and Thomas, Elements of Information Theory, 10.3.3) gives a component
of variance s half log2(s / water level) bits. With four widths, counts in multiples of 8 (or more)
and segments padded to 4 bytes, the best layout is found by trying all of them instead: components
are sorted by variance, so a layout is three counts and its distortion is read off running sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.exporter import schemas
from minicache.exporter.calibration.quantiser import WIDTHS
from minicache.runtime.errors import PlanError

Array = npt.NDArray[Any]

COUNT_MULTIPLE = 8  # of components in a segment, so that its planes fill whole bytes
MULTIPLES: Mapping[int, int] = dict.fromkeys(WIDTHS, COUNT_MULTIPLE)  # by width, at least
MAGNITUDE_BITS = 16


@dataclass(frozen=True)
class Layout:
    """Segments of a code.

    Attributes:
        bits: ``bits, count, ...`` as the attributes ``key_bits`` and ``value_bits`` hold them.
        distortion: expected squared error of a unit direction, components without bits included.
    """

    bits: tuple[int, ...]
    distortion: float

    @property
    def components(self) -> int:
        """Components R that are stored."""
        return sum(self.bits[1::2])

    @property
    def widths(self) -> npt.NDArray[np.int64]:
        """Bits of each stored component, ``[R]``."""
        return np.repeat(np.array(self.bits[0::2], np.int64), self.bits[1::2])


def bits_per_element(bits: tuple[int, ...], elements: int) -> float:
    """Bits per element of the coded part: padding and the fp16 magnitude included.

    Args:
        bits: segments of the code.
        elements: numbers that one code restores, G * (Hk / Hc) * D.
    """
    return (8 * schemas.code_bytes(bits) + MAGNITUDE_BITS) / elements


def allocate(
    variance: npt.ArrayLike,
    distortion: Mapping[int, npt.ArrayLike],
    budget: float,
    multiples: Mapping[int, int] = MULTIPLES,
) -> Layout:
    """Finds the layout of least distortion.

    Args:
        variance: ``[E]`` of the components, descending; what is lost when one gets no bits.
        distortion: by width (8, 4, 2), what is lost when it gets that many, ``[E]``.
        budget: bits per element of the coded part, padding and magnitude included.
        multiples: by width, what the count of a segment is a multiple of; of ``COUNT_MULTIPLE``.

    Raises:
        PlanError: not even the smallest code fits.
    """
    lost = np.asarray(variance, np.float64)
    elements = len(lost)
    spare = int(budget * elements + 1e-6) - MAGNITUDE_BITS
    smallest = min(schemas.code_bytes((width, multiples[width])) for width in WIDTHS)
    if spare < 8 * smallest:
        raise PlanError(
            f"{budget:g} bits per element are {max(spare, 0)} bits for a code of {elements} "
            f"elements, the smallest one takes {8 * smallest}; give at least "
            f"{(8 * smallest + MAGNITUDE_BITS) / elements:.3f} bits, or join more layers or heads"
        )
    saved = {width: _running(lost - np.asarray(distortion[width], np.float64)) for width in WIDTHS}
    blocks = elements // COUNT_MULTIPLE
    counts = np.arange(blocks + 1)
    size = {width: _bytes(width, counts) for width in WIDTHS}
    bytes_left = spare // 8
    step = {width: multiples[width] // COUNT_MULTIPLE for width in WIDTHS}
    # How many blocks of the last width fit into so many bytes.
    fitting = np.searchsorted(size[2], np.arange(bytes_left + 1), side="right") - 1
    best, choice = -1.0, (0, 0, 0)
    for first in counts[:: step[8]]:
        if size[8][first] > bytes_left:
            break
        rest = bytes_left - size[8][first]
        second = counts[: blocks - first + 1 : step[4]]
        second = second[size[4][second] <= rest]
        third = np.minimum(fitting[rest - size[4][second]], blocks - first - second)
        third -= third % step[2]
        middle, end = first + second, first + second + third
        total = saved[8][first] + saved[4][middle] - saved[4][first]
        total = total + saved[2][end] - saved[2][middle]
        at = int(np.argmax(total))
        if total[at] > best:
            best, choice = float(total[at]), (int(first), int(second[at]), int(third[at]))
    segments = [
        (width, count * COUNT_MULTIPLE) for width, count in zip(WIDTHS, choice, strict=True)
    ]
    bits = tuple(number for width, count in segments if count for number in (width, count))
    # Without any gain (a constant zero) a code still has to exist.
    return Layout(bits or (2, multiples[2]), float(lost.sum()) - max(best, 0.0))


def _running(saved: Array) -> Array:
    """Sums over the first 0, 1, 2, ... blocks of components."""
    whole = saved[: len(saved) // COUNT_MULTIPLE * COUNT_MULTIPLE]
    blocks = whole.reshape(-1, COUNT_MULTIPLE).sum(axis=1)
    return np.concatenate([[0.0], np.cumsum(blocks)])


def _bytes(width: int, blocks: Array) -> Array:
    return np.array([schemas.code_bytes((width, int(n) * COUNT_MULTIPLE)) for n in blocks])
