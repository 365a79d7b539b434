"""Angles and sines in fp64, by polynomials: Triton's interpreter has no atan2."""

from __future__ import annotations

import triton
import triton.language as tl

PI = tl.constexpr(3.141592653589793)
QUARTER = tl.constexpr(0.7853981633974483)


@triton.jit
def angle_of(y, x):
    """The angle of points x, y >= 0 of a plane, in [0, pi/2], fp64; 0 for x = y = 0."""
    small = tl.minimum(x, y)
    large = tl.maximum(x, y)
    ratio = small / tl.where(large > 0, large, 1.0)
    # atan(r) = pi/4 + atan((r - 1) / (r + 1)) brings r within tan(pi/8).
    steep = ratio > 0.4142135623730951
    z = tl.where(steep, (ratio - 1.0) / (ratio + 1.0), ratio)
    w = z * z
    # Rational approximation of (atan(z) - z) / z^3 for |z| <= 0.66 (Cephes).
    p = -8.750608600031904122785e-1
    p = p * w - 1.615753718733365076637e1
    p = p * w - 7.500855792314704667340e1
    p = p * w - 1.228866684490136173410e2
    p = p * w - 6.485021904942025371773e1
    q = w + 2.485846490142306297962e1
    q = q * w + 1.650270098316988542046e2
    q = q * w + 4.328810604912902668951e2
    q = q * w + 4.853903996359136964868e2
    q = q * w + 1.945506571482613964425e2
    angle = z + z * w * (p / q) + steep.to(tl.float64) * QUARTER
    return tl.where(y > x, 2 * QUARTER - angle, angle)


@triton.jit
def sine_of(angle):
    """Sines of angles in [0, pi], fp64: the Taylor series to the 21st power is exact there."""
    x = tl.minimum(angle, PI - angle)
    z = x * x
    s = 1.0 - z / 420.0
    s = 1.0 - z * s * (1.0 / 342.0)
    s = 1.0 - z * s * (1.0 / 272.0)
    s = 1.0 - z * s * (1.0 / 210.0)
    s = 1.0 - z * s * (1.0 / 156.0)
    s = 1.0 - z * s * (1.0 / 110.0)
    s = 1.0 - z * s * (1.0 / 72.0)
    s = 1.0 - z * s * (1.0 / 42.0)
    s = 1.0 - z * s * (1.0 / 20.0)
    s = 1.0 - z * s * (1.0 / 6.0)
    return x * s
