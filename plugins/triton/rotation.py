"""RoPE by positions, R(a): how queries and keys move into the frame of a segment."""

from __future__ import annotations

import triton
import triton.language as tl

QUARTER_TURN = tl.constexpr(1.5707963267948966)
INVERSE_QUARTER = tl.constexpr(0.6366197723675814)


@triton.jit
def partner(component, pairs, INTERLEAVED: tl.constexpr):
    """The component that RoPE turns together with each; itself from D_rot on."""
    if INTERLEAVED:
        other = component ^ 1
    else:
        other = tl.where(component < pairs, component + pairs, component - pairs)
    return tl.where(component < 2 * pairs, other, component)


@triton.jit
def rotation_back(frequency_ptr, offset, component, pairs, INTERLEAVED: tl.constexpr):
    """Factors of R(-offset): x of a component becomes ``cosine * x + sine * x of its partner``.

    Angles are formed and reduced in fp64, as offset * frequency has more digits than fp32.

    Args:
        frequency_ptr: fp32 ``[pairs]``.
        offset: int, first position of a segment; a scalar, or of a shape that broadcasts.
        component: int ``[..., D]``.
        pairs: D_rot / 2.
        INTERLEAVED: pairs are (2i, 2i + 1), not (i, i + pairs).

    Returns:
        cosine and sine, fp32; 1 and 0 from D_rot on.
    """
    turned = component < 2 * pairs
    if INTERLEAVED:
        pair = component // 2
        is_first = component % 2 == 0
    else:
        is_first = component < pairs
        pair = tl.where(is_first, component, component - pairs)
    frequency = tl.load(frequency_ptr + pair, mask=turned, other=0.0).to(tl.float64)
    angle = offset.to(tl.float64) * frequency
    cosine, sine = turn_of(angle)
    return cosine, tl.where(turned, tl.where(is_first, sine, -sine), 0.0)


@triton.jit
def turn_of(angle):
    """Cosine and sine, fp32, of fp64 angles of any size.

    Whole quarters are taken off in fp64. What is left lies in [-pi/4, pi/4], where short
    polynomials (Cephes) are exact to an fp32 rounding; ``tl.sin`` would bring code, and a stack,
    for angles that do not occur.
    """
    quarters = tl.floor(angle * INVERSE_QUARTER + 0.5)
    rest = (angle - quarters * QUARTER_TURN).to(tl.float32)
    quadrant = (quarters - 4.0 * tl.floor(quarters * 0.25)).to(tl.int32)
    z = rest * rest
    s = ((-1.9515295891e-4 * z + 8.3321608736e-3) * z - 1.6666654611e-1) * z * rest + rest
    c = (2.443315711809948e-5 * z - 1.388731625493765e-3) * z + 4.166664568298827e-2
    c = c * z * z - 0.5 * z + 1.0
    odd = quadrant % 2 == 1
    sine = tl.where(odd, c, s)
    cosine = tl.where(odd, s, c)
    return (
        tl.where((quadrant == 1) | (quadrant == 2), -cosine, cosine),
        tl.where(quadrant >= 2, -sine, sine),
    )
