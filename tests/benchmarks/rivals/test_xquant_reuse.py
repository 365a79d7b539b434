"""Code reuse between layers: a pair by hand, what is shared, residuals, bytes, claimed bits."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.rivals.xquant_reuse import GROUP, XQuantReuse
from minicache.exporter.baselines.cache_shape import CacheShape
from minicache.exporter.baselines.kivi import Kivi
from minicache.runtime.errors import PlanError
from tests.benchmarks.rivals.vectors import LAYERS, SHAPE, cache, error


def test_pairs_by_hand() -> None:
    """Values 0, 1, 2, 3 below and ten times as much above: the upper layer needs no codes."""
    lower = np.tile(np.arange(4, dtype=np.float32), GROUP // 4)[None, None].repeat(GROUP, 1)
    other = lower[..., ::-1]
    codec = XQuantReuse(3, CacheShape(4, 1, GROUP))
    # 3 bit levels are 3/7 apart: codes 0, 2, 5, 7.
    expected = np.tile(np.array([0, 6, 15, 21]) / 7, GROUP // 4)
    keys = [lower] * 4
    found = codec.rewrite(keys, [lower, 10 * lower, other, 10 * other], 0)[1]
    wanted = [expected, 10 * expected, expected[::-1], 10 * expected[::-1]]
    for shown, values in zip(found, wanted, strict=True):
        np.testing.assert_allclose(shown[0, 5], values, rtol=1e-3)
    # What is high above and low below is not seen: codes are the lower layer's.
    found = codec.rewrite(keys, [lower, -lower, other, other], 0)[1]
    np.testing.assert_allclose(found[1][0, 5], expected - 3, atol=2e-3)


@pytest.mark.parametrize("bits", [3, 4])
def test_lower_layers_are_kivis(bits: int) -> None:
    keys, values = cache(2 * GROUP)
    found, kivi = (
        XQuantReuse(bits, SHAPE).rewrite(keys, values, 0),
        Kivi(bits, SHAPE).rewrite(keys, values, 0),
    )
    for layer in range(0, LAYERS, 2):
        for mine, theirs in zip(found, kivi, strict=True):
            np.testing.assert_array_equal(mine[layer], theirs[layer])


def test_layers_without_a_common_direction_are_lost_unless_a_residual_is_kept() -> None:
    keys, values = cache(4 * GROUP)
    upper = [1, 3]
    plain, with_residual = (
        XQuantReuse(2, SHAPE, residual_bits=bits).rewrite(keys, values, 0)[1] for bits in (0, 4)
    )
    lost, kept = (
        error([x[i] for i in upper], [values[i] for i in upper]) for x in (plain, with_residual)
    )
    assert lost > 1 > 0.2 > kept


def test_only_values_can_be_shared() -> None:
    keys, values = cache(GROUP)
    found = XQuantReuse(4, SHAPE, "values").rewrite(keys, values, 0)
    alone = Kivi(4, SHAPE).rewrite(keys, values, 0)
    np.testing.assert_array_equal(found[0], alone[0])
    assert error(found[1], values) > 3 * error(alone[1], values)


@pytest.mark.parametrize("shared", ["keys and values", "values"])
@pytest.mark.parametrize("residual", [0, 4])
def test_bytes_counted_are_bytes_held(shared, residual: int) -> None:  # type: ignore[no-untyped-def]
    codec = XQuantReuse(3, SHAPE, shared, residual, sinks=4, window=64)
    context = 4 + 64 + 3 * GROUP
    keys, values = codec.encode(*cache(3 * GROUP))
    held = sum(part.nbytes for kind in (keys, values) for layer in kind for part in layer)
    assert held + SHAPE.fp16_bytes(68) == codec.cache_bytes(context)


def test_claimed_bits() -> None:
    """Half of the layers hold codes: b / 2 bits, and a scale and a zero point for every group."""
    even = CacheShape(30, 3, 64)
    assert XQuantReuse(2, even).bits_per_element == 2 / 2 + 1
    assert XQuantReuse(2, even, residual_bits=4).bits_per_element == (2 + 4) / 2 + 1.5
    assert XQuantReuse(4, even, "values").bits_per_element == (4 + 4 / 2) / 2 + 1


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(PlanError, match="codes of 5 bit"):
        XQuantReuse(5, SHAPE)
    with pytest.raises(PlanError, match="the head size is 48"):
        XQuantReuse(4, CacheShape(2, 1, 48))
    with pytest.raises(PlanError, match="whole groups of 32 tokens"):
        XQuantReuse(4, SHAPE).rewrite(*cache(33), 0)
