"""How a component of a unit direction is quantised: its step, its gain, and what is lost.

A component y of b bits is stored as k = clamp(floor(y / step) + 2^(b-1)) and read back as
gain * step * (k - (2^b - 1) / 2): the operator's mid-rise grid, with the gain folded into the
decoder. Both are fitted to calibration samples, component by component: directions are bounded and
some components have a mean far from zero, so that clip factors for a normal distribution are wrong.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

WIDTHS = (8, 4, 2)  # bits, in the order of a code's segments
# Clip points in standard deviations that are tried: around the best ones for a normal distribution
# (2.2 at 2 bit, 3.5 at 4, 6 at 8; cf. Max, IRE Trans. Inf. Theory 1960), which tails widen and
# bounds narrow.
CLIP_FACTORS = {8: (2.5, 4.5, 6.0, 8.0), 4: (1.8, 2.4, 2.9, 3.5, 4.2), 2: (1.2, 1.6, 1.9, 2.2, 2.6)}
SMALLEST_SIGMA = 1e-7  # a step of zero would divide by zero; a constant component stays harmless


class Fit(NamedTuple):
    """The best quantiser of each component at one width.

    Attributes:
        step: ``[R]``.
        gain: ``[R]``, about 1.
        distortion: ``[R]`` mean squared error.
    """

    step: Array
    gain: Array
    distortion: Array


def quantised(samples: Array, step: Array, bits: int) -> Array:
    """Levels k - (2^b - 1) / 2 of samples ``[n, R]`` at steps ``[R]``."""
    top = 2.0 ** (bits - 1)
    levels = np.floor(samples / step)
    np.clip(levels, -top, top - 1, out=levels)
    levels += 0.5
    return levels


def fit_quantiser(samples: Array, bits: int) -> Fit:
    """Fits step and gain of every component.

    Args:
        samples: components of unit directions ``[n, R]``.
        bits: 8, 4 or 2.
    """
    energy = np.mean(np.square(samples), axis=0, dtype=np.float64)
    sigma = np.maximum(np.sqrt(energy), SMALLEST_SIGMA)
    best: Fit | None = None
    for factor in CLIP_FACTORS[bits]:
        step = (2 * factor * sigma / 2**bits).astype(samples.dtype)
        levels = quantised(samples, step, bits)
        square = np.einsum("nr,nr->r", levels, levels) / len(samples)
        cross = np.einsum("nr,nr->r", levels, samples) / len(samples)
        # Least squares: y = a * level, error E[y^2] - E[y level]^2 / E[level^2].
        gain = cross / square / step
        found = Fit(step, gain, np.maximum(energy - cross**2 / square, 0.0))
        if best is None:
            best = found
            continue
        better = found.distortion < best.distortion
        best = Fit(*(np.where(better, new, old) for new, old in zip(found, best, strict=True)))
    assert best is not None
    return best
