"""Latents: what a projection's output says of its input."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.rivals.latent import Latent


@pytest.mark.parametrize(("width", "outputs"), [(20, 8), (8, 20), (8, 8)])
def test_the_input_is_known_as_far_as_the_output_needs_it(width: int, outputs: int) -> None:
    rng = np.random.default_rng(0)
    weight, bias = rng.standard_normal((width, outputs)), rng.standard_normal(outputs)
    x = rng.standard_normal((30, width))
    latent = Latent.of(weight, bias)
    vectors = x @ weight + bias
    assert latent.rank == min(width, outputs)
    np.testing.assert_allclose(latent.basis.T @ latent.basis, np.eye(latent.rank), atol=1e-5)
    np.testing.assert_allclose(latent.encode(vectors), x @ latent.basis, atol=1e-4)
    np.testing.assert_allclose(latent.decode(latent.encode(vectors)), vectors, atol=1e-4)


def test_by_hand() -> None:
    latent = Latent.of(np.array([[0.0, 3.0], [4.0, 0.0], [0.0, 0.0]]), np.array([1.0, 1.0]))
    coded = latent.encode(np.array([[9.0, 7.0]]))  # x = (2, 2, anything)
    np.testing.assert_allclose(np.abs(coded), [[2, 2]], rtol=1e-6)
    np.testing.assert_allclose(coded @ latent.basis.T, [[2, 2, 0]], atol=1e-6)


def test_directions_that_the_weight_ignores_are_left_out() -> None:
    column = np.arange(1.0, 7)[:, None]
    latent = Latent.of(column @ np.ones((1, 4)), np.zeros(4))
    assert latent.rank == 1
    np.testing.assert_allclose(latent.decode(latent.encode(5 * np.ones((2, 4)))), 5, rtol=1e-5)
