"""xKV: a rank-one case by hand, full rank is exact, the best of its rank, later tokens, bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.rivals.rows import to_rows, unrotate
from benchmarks.rivals.xkv import GROUP_LAYERS, XKv, factorise
from minicache.runtime.errors import PlanError
from tests.benchmarks.rivals.vectors import HEADS, LAYERS, ROPES, SHAPE, SIZE, cache, error

WIDTH = HEADS * SIZE


def test_rank_one_by_hand() -> None:
    factors = factorise(np.outer([1.0, 2, 2], [3.0, 0, 4]), 1)
    np.testing.assert_allclose(
        factors.rows @ factors.basis, np.outer([1, 2, 2], [3, 0, 4]), rtol=2e-3
    )
    np.testing.assert_allclose(np.linalg.norm(factors.basis), 1, rtol=1e-3)
    assert factors.nbytes == 2 * (3 + 3)


def test_full_rank_is_exact_up_to_fp16() -> None:
    keys, values = cache(40)
    found = XKv(0.01, SHAPE, ROPES, prompt=40).rewrite(keys, values, 0)
    assert error(found[0], keys) < 2e-3 and error(found[1], values) < 2e-3


def test_no_other_matrix_of_the_rank_is_nearer() -> None:
    keys, values = cache(100)
    codec = XKv(4, SHAPE, ROPES, prompt=100)
    found = codec.rewrite(keys, values, 0)[1]
    joint = np.concatenate([to_rows(x) for x in values[:GROUP_LAYERS]], axis=1)
    shown = np.concatenate([to_rows(x) for x in found[:GROUP_LAYERS]], axis=1)
    _, rank = codec.ranks(100, GROUP_LAYERS)
    assert np.linalg.matrix_rank(shown, tol=0.1) == rank
    rest = np.linalg.svd(joint, compute_uv=False)[rank:]
    np.testing.assert_allclose(np.linalg.norm(shown - joint), np.linalg.norm(rest), rtol=1e-3)


def test_keys_are_factorised_before_rope() -> None:
    """Equal keys at all positions have rank one before RoPE, and not after it."""
    plain = [np.ones((HEADS, 64, SIZE), np.float32)] * LAYERS
    keys = unrotate(plain, ROPES, 0, back=True)
    found = XKv(15, SHAPE, ROPES, prompt=64).rewrite(keys, cache(64)[1], 0)[0]
    assert error(found, keys) < 2e-3


def test_generated_tokens_stay_exact_and_can_be_projected() -> None:
    keys, values = cache(96)
    prompt = [x[:, :64] for x in keys], [x[:, :64] for x in values]
    later = [x[:, 64:] for x in keys], [x[:, 64:] for x in values]
    published = XKv(2, SHAPE, ROPES, prompt=64)
    published.rewrite(*prompt, 0)
    for found, given_ in zip(published.rewrite(*later, 64), later, strict=True):
        np.testing.assert_array_equal(found, given_)
    projected = XKv(2, SHAPE, ROPES, prompt=64, projected=True)
    projected.rewrite(*prompt, 0)
    # Tokens of the prompt come back as they did: the projection is the factorisation's.
    again = projected.rewrite(*prompt, 64)[1]
    assert error(again, projected.rewrite(*prompt, 0)[1]) < 2e-3
    assert error(projected.rewrite(*later, 64)[1], later[1]) > 0.3, "random tokens do not fit"


@given(st.sampled_from([2.0, 4.0, 5.3, 8.0]), st.integers(100, 900), st.sampled_from([0, 64]))
def test_the_ratio_is_kept_with_the_basis_counted(ratio: float, prompt: int, window: int) -> None:
    codec = XKv(ratio, SHAPE, ROPES, prompt, sinks=4, window=window)
    assert codec.bits_per_element <= 16 / ratio
    key, value = codec.ranks(prompt - 4 - window, GROUP_LAYERS)
    assert value >= key >= 1
    assert value == pytest.approx(1.5 * key, abs=3)


@pytest.mark.parametrize("projected", [False, True])
def test_bytes_counted_are_bytes_held(projected: bool) -> None:
    codec = XKv(4, SHAPE, ROPES, prompt=200, sinks=4, window=64, projected=projected)
    coded = codec.coded_end(200) - 4
    held = sum(f.nbytes for both in codec.encode(*cache(coded), 4) for f in both)
    assert held + SHAPE.fp16_bytes(68) == codec.cache_bytes(200)
    assert held == codec.bits_per_element / 8 * coded * SHAPE.elements_per_token
    grown = codec.cache_bytes(300) - codec.cache_bytes(200)
    ranks = sum(codec.ranks(coded, GROUP_LAYERS)) + sum(codec.ranks(coded, LAYERS - GROUP_LAYERS))
    assert grown == (2 * 100 * ranks if projected else SHAPE.fp16_bytes(100))


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(PlanError, match="leaves nothing to factorise"):
        XKv(4, SHAPE, ROPES, prompt=68, sinks=4, window=64)
    with pytest.raises(PlanError, match="give a longer prompt or a smaller ratio"):
        XKv(400, SHAPE, ROPES, prompt=70).ranks(70, GROUP_LAYERS)
