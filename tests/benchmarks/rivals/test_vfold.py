"""VFold: means by hand, maps that undo a rotation, bytes, the paper's 25 % and 4.27 times."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.rivals.alignment import HeadMap, fit_map
from benchmarks.rivals.vfold import VFold, groups_of
from minicache.exporter.baselines.cache_shape import CacheShape
from minicache.runtime.errors import PlanError
from tests.benchmarks.rivals.vectors import HEADS, LAYERS, SHAPE, SIZE, cache, error

PLAIN = (HeadMap.identity(HEADS, SIZE),) * LAYERS


def disguised(values: list[np.ndarray], seed: int = 5) -> list[np.ndarray]:
    """The first layer's values in all layers, heads swapped and mixed by a matrix of each head."""
    rng = np.random.default_rng(seed)
    found = [values[0]]
    for _ in values[1:]:
        turns = np.linalg.qr(rng.standard_normal((HEADS, SIZE, SIZE)))[0]
        mixed = values[0] @ (turns * np.linspace(0.5, 3, SIZE)) @ np.swapaxes(turns, 1, 2)
        found.append(mixed[::-1].astype(np.float32))
    return found


def by_token(layers: list[np.ndarray]) -> list[np.ndarray]:
    return [np.swapaxes(layer, 0, 1) for layer in layers]


def test_means_by_hand() -> None:
    keys, _ = cache(2)
    values = [np.full((HEADS, 2, SIZE), float(layer), np.float32) for layer in range(LAYERS)]
    found_keys, found = VFold(2, SHAPE, PLAIN).rewrite(keys, values, 4)
    np.testing.assert_array_equal(found_keys, keys)
    assert [float(x[0, 0, 0]) for x in found] == [0.5, 0.5, 2.5, 2.5, 4.0]
    found = VFold(4, SHAPE, PLAIN).rewrite(keys, values, 4)[1]
    assert [float(x[0, 0, 0]) for x in found] == [1.5, 1.5, 1.5, 1.5, 4.0]


@pytest.mark.parametrize("group", [2, 4])
def test_layers_that_differ_by_a_map_are_restored(group: int) -> None:
    keys, values = cache(2000)
    values = disguised(values)
    codec = VFold(group, SHAPE, VFold.fit(by_token(values), group))
    aligned = error(codec.rewrite(keys, values, 4)[1], values)
    plain = error(VFold(group, SHAPE, PLAIN).rewrite(keys, values, 4)[1], values)
    assert 20 * aligned < 0.4 < plain


def test_a_map_and_its_inverse_change_nothing() -> None:
    _, values = cache(300)
    found = fit_map(*by_token(values[:2]))
    np.testing.assert_allclose(found.undo(found.apply(values[1])), values[1], atol=1e-3)
    assert sorted(found.heads.tolist()) == list(range(HEADS))


def test_heads_are_matched() -> None:
    _, values = cache(2000)
    swapped = fit_map(*by_token(disguised(values)[:2]))
    np.testing.assert_array_equal(swapped.heads, [1, 0])
    np.testing.assert_array_equal(fit_map(*by_token([values[0]] * 2)).heads, [0, 1])


def test_moments_become_the_references() -> None:
    """Mapped values have the second moments of the reference: a CCA map whitens and colours."""
    _, values = cache(3000)
    other = values[1] @ np.diag(np.linspace(0.5, 3, SIZE)).astype(np.float32)
    mapped = fit_map(*by_token([values[0], other])).apply(other)
    for head in range(HEADS):
        wanted, found = (x[head].T @ x[head] / 3000 for x in (values[0], mapped))
        np.testing.assert_allclose(found, wanted, atol=0.01)


@pytest.mark.parametrize("bits", [0, 4])
def test_bytes_counted_are_bytes_held(bits: int) -> None:
    codec = VFold(2, SHAPE, PLAIN, bits, sinks=4, window=64)
    context = 4 + 64 + 96
    coded = codec.coded_end(context) - 4
    keys, shared = codec.encode(*cache(coded))
    numbers = sum(x.size for x in (*keys, *shared))
    held = numbers * 2 if not bits else numbers * bits // 8 + numbers // 32 * 4
    assert held + SHAPE.fp16_bytes(68) == codec.cache_bytes(context)


def test_claimed_ratios() -> None:
    """The paper: pairs cut the cache by 25 %, and with KIVI at 4 bit it is 4.27 times smaller."""
    even = CacheShape(32, 8, 64)
    maps = (HeadMap.identity(8, 64),) * 32
    assert VFold(2, even, maps).bits_per_element == 16 * 0.75
    assert VFold(4, even, maps).bits_per_element == 16 * 0.625
    assert 16 / VFold(2, even, maps, 4).bits_per_element == pytest.approx(4.27, abs=0.005)


def test_quantised_means_are_near_the_means() -> None:
    keys, values = cache(64)
    exact = VFold(2, SHAPE, PLAIN).rewrite(keys, values, 4)
    coded = VFold(2, SHAPE, PLAIN, 8).rewrite(keys, values, 4)
    assert error(coded[0], exact[0]) < 0.01 and error(coded[1], exact[1]) < 0.01


def test_bad_parameters_are_refused() -> None:
    assert groups_of(5, 2) == [range(2), range(2, 4), range(4, 5)]
    with pytest.raises(PlanError, match="1 maps and groups of 2"):
        VFold(2, SHAPE, PLAIN[:1])
    with pytest.raises(PlanError, match="at least one token"):
        VFold.fit([np.empty((0, HEADS, SIZE))] * 2, 2)
    with pytest.raises(PlanError, match="whole groups of 32 tokens"):
        VFold(2, SHAPE, PLAIN, 4).rewrite(*cache(33), 4)
