"""The joint basis finds the subspace that the vectors lie in."""

from __future__ import annotations

import numpy as np
import pytest

from minicache.exporter.calibration.klt import make_basis, metric_roots
from minicache.exporter.calibration.moments import (
    JointMoments,
    affordable_span,
    head_moments,
    partners,
    squared_lengths,
    token_weights,
)

TOKENS, HEADS, SIZE = 600, 2, 8


def gather(vectors: list[np.ndarray]) -> JointMoments:
    """Moments of layers ``[T, Hk, D]`` of one kind, in two chunks."""
    width = vectors[0].shape[1] * vectors[0].shape[2]
    moments = JointMoments(partners([0] * len(vectors), len(vectors)), [width] * len(vectors))
    for chunk in (slice(0, 250), slice(250, None)):
        part = [layer[chunk] for layer in vectors]
        moments.add(part, np.ones(len(part[0]), np.float32))
    return moments


def low_rank(rank: int, layers: int, seed: int = 0) -> list[np.ndarray]:
    """Layers whose heads are maps of common factors: one set of ``rank`` factors per head."""
    rng = np.random.default_rng(seed)
    factors = rng.standard_normal((HEADS, TOKENS, rank))
    return [
        np.stack([f @ rng.standard_normal((rank, SIZE)) for f in factors], axis=1)
        for _ in range(layers)
    ]


def test_joint_moments_are_those_of_the_joined_vectors() -> None:
    vectors = low_rank(3, 3)
    moments = gather(vectors)
    flat = [layer.reshape(TOKENS, -1) for layer in vectors]
    for a, b in ((0, 0), (0, 2), (2, 1)):
        found = moments.block(a, b)
        assert found is not None
        np.testing.assert_allclose(found, flat[a].T @ flat[b] / TOKENS, rtol=1e-4, atol=1e-4)


def test_partners_are_the_next_layers_of_the_same_kind() -> None:
    assert partners([0, 1, 0, 0, 1], 2) == [[0, 2], [1, 4], [2, 3], [3], [4]]
    moments = JointMoments(partners([0, 0, 0], 2), [4, 4, 4])
    assert moments.block(0, 2) is None


def test_span_shrinks_to_what_fits() -> None:
    assert affordable_span([192] * 30, 10) == 10
    assert affordable_span([4096] * 32, 4) == 1
    assert affordable_span([100], 4, limit=2 * 4 * 100 * 100 * 3) == 3


@pytest.mark.parametrize("code_heads", [2, 1])
def test_rank_deficient_vectors_lie_in_the_first_components(code_heads: int) -> None:
    vectors = low_rank(3, 2)
    metrics = [np.tile(np.eye(SIZE), (HEADS, 1, 1))] * 2
    basis = make_basis(gather(vectors), metrics, vectors, (0, 1), code_heads)
    rank = 3 * HEADS // code_heads
    size = 2 * HEADS // code_heads * SIZE
    assert basis.vectors.shape == (code_heads, size, size)
    assert basis.variance[:rank].sum() == pytest.approx(1.0, abs=1e-4)
    assert basis.variance[rank:].max() < 1e-5
    for width in (8, 4, 2):
        assert (basis.distortion[width] <= basis.variance + 1e-9).all()


def test_matched_heads_share_a_slot() -> None:
    first = low_rank(2, 1)[0]
    swapped = first[:, ::-1] * 1.5
    metrics = [np.tile(np.eye(SIZE), (HEADS, 1, 1))] * 2
    moments = gather([first, swapped])
    basis = make_basis(moments, metrics, [first, swapped], (0, 1), HEADS)
    assert basis.permutation == ((0, 1), (1, 0))
    joint = make_basis(moments, metrics, [first, swapped], (0, 1), 1)
    assert joint.permutation == ((0, 1), (0, 1))


def test_roots_of_full_singular_and_zero_metrics() -> None:
    rng = np.random.default_rng(2)
    half = rng.standard_normal((SIZE, 3))
    full = rng.standard_normal((SIZE, SIZE))
    metrics = np.stack([full @ full.T, half @ half.T, np.zeros((SIZE, SIZE))])
    roots, inverse = metric_roots(metrics)
    np.testing.assert_allclose(roots @ inverse, np.tile(np.eye(SIZE), (3, 1, 1)), atol=1e-6)
    np.testing.assert_allclose(roots[0] @ roots[0], metrics[0], rtol=1e-2, atol=1e-2)
    np.testing.assert_allclose(roots[2], np.eye(SIZE))


def test_constant_and_zero_heads_do_not_break_the_basis() -> None:
    vectors = low_rank(3, 2)
    vectors[0][:, 0] = 0.0
    vectors[1][:, 0] = 0.0  # slot 0 is empty in both layers
    vectors[0][:, 1] = 2.5
    metrics = [np.zeros((HEADS, SIZE, SIZE))] * 2
    basis = make_basis(gather(vectors), metrics, vectors, (0, 1), HEADS)
    for array in (basis.vectors, basis.variance, *basis.distortion.values()):
        assert np.isfinite(array).all()


def test_head_moments_average_the_query_heads_of_a_kv_head() -> None:
    queries = np.random.default_rng(0).standard_normal((20, 4, 3))
    found = head_moments(queries, 2)
    expected = sum(queries[:, h].T @ queries[:, h] for h in (2, 3)) / 2
    np.testing.assert_allclose(found[1], expected)


def test_token_weights_undo_common_lengths() -> None:
    rng = np.random.default_rng(4)
    lengths = rng.uniform(0.1, 10.0, (50, 1, 1))
    direction = rng.standard_normal((50, 2, 4))
    direction /= np.linalg.norm(direction, axis=2, keepdims=True)
    vectors = [lengths * direction, 3 * lengths * direction]
    metrics = [np.tile(np.eye(4), (2, 1, 1))] * 2
    means = np.stack([squared_lengths(x, m).mean(0) for x, m in zip(vectors, metrics, strict=True)])
    weights = token_weights(vectors, metrics, means)
    weighted = weights * squared_lengths(vectors[1], metrics[1])[:, 0]
    np.testing.assert_allclose(weighted, weighted[0], rtol=1e-4)
    assert (token_weights([x * 0 for x in vectors], metrics, means) == 0).all()
    assert (token_weights(vectors, metrics, None) == 1).all()
