"""KIVI: what is grouped with what, error bounds, whole groups, bytes."""

from __future__ import annotations

import numpy as np
import pytest

from minicache.exporter.baselines.cache_shape import CacheShape
from minicache.exporter.baselines.kivi import GROUP, Kivi, quantise_groups
from minicache.runtime.errors import PlanError

SHAPE = CacheShape(layers=3, num_kv_heads=2, head_dim=64)


def vectors(tokens: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return list(rng.standard_normal((3, 2, tokens, 64)).astype(np.float32))


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_error_is_at_most_half_a_step_of_the_group(bits: int) -> None:
    keys, values = vectors(64), vectors(64, 1)
    found_keys, found_values = Kivi(bits, SHAPE).rewrite(keys, values, 0)
    # fp16 zero points and scales add up to 2^-11 of their size, at every level.
    slack = 2.0**-11 * 12
    for key, found in zip(keys, found_keys, strict=True):
        groups = key.reshape(2, 2, GROUP, 64)  # over tokens, each channel alone
        step = np.ptp(groups, axis=2, keepdims=True) / (2**bits - 1)
        assert (np.abs(found.reshape(groups.shape) - groups) <= step / 2 + slack).all()
    for value, found in zip(values, found_values, strict=True):
        groups = value.reshape(2, 64, 2, GROUP)  # over channels, each token alone
        step = np.ptp(groups, axis=3, keepdims=True) / (2**bits - 1)
        assert (np.abs(found.reshape(groups.shape) - groups) <= step / 2 + slack).all()


def test_ends_of_a_group_are_restored_and_8_bit_is_nearly_lossless() -> None:
    x = vectors(32)[0]
    two, eight = quantise_groups(x, 2), quantise_groups(x, 8)
    groups, found = x.reshape(-1, GROUP), two.reshape(-1, GROUP)
    np.testing.assert_allclose(found.min(axis=1), groups.min(axis=1), rtol=1e-3)
    assert len(np.unique(found[0])) <= 4
    assert np.linalg.norm(eight - x) / np.linalg.norm(x) < 0.01


def test_constant_groups_survive() -> None:
    for value in (0.0, 1.5, -1e-9):
        np.testing.assert_allclose(quantise_groups(np.full((2, 64), value), 2), value, atol=1e-7)


def test_only_whole_groups_are_coded() -> None:
    codec = Kivi(4, SHAPE, sinks=4, window=64)
    assert [codec.coded_end(n) for n in (0, 68, 99, 100, 131, 132)] == [4, 4, 4, 36, 36, 68]
    with pytest.raises(PlanError, match="whole groups of 32 tokens, not 33"):
        codec.rewrite(vectors(33), vectors(33), 4)
    with pytest.raises(PlanError, match="from position 5"):
        codec.rewrite(vectors(32), vectors(32), 5)


def test_groups_do_not_depend_on_how_they_are_cut() -> None:
    codec = Kivi(2, SHAPE)
    keys, values = vectors(96), vectors(96, 1)
    whole = codec.rewrite(keys, values, 0)[0]
    part = codec.rewrite([k[:, 32:64] for k in keys], [v[:, 32:64] for v in values], 32)[0]
    np.testing.assert_array_equal(whole[1][:, 32:64], part[1])


def test_bytes() -> None:
    codec = Kivi(3, SHAPE, sinks=4, window=64)
    elements = 2 * 3 * 2 * 64
    coded = 4 + (1000 - 68) // 32 * 32 - 4
    expected = (
        coded * elements * 3 // 8 + coded * elements // 32 * 4 + (1000 - coded) * elements * 2
    )
    assert codec.cache_bytes(1000) == expected
    assert codec.bits_per_element == 4
    assert codec.cache_bytes(3) == 3 * elements * 2


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(PlanError, match="5 bit is unknown"):
        Kivi(5, SHAPE)
    with pytest.raises(PlanError, match="the head size is 48"):
        Kivi(4, CacheShape(1, 1, 48))
    with pytest.raises(PlanError, match="sinks is -1"):
        Kivi(4, SHAPE, sinks=-1)
