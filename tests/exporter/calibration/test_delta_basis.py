"""Bases for deltas: the principal axes of what the directions of two layers lack."""

from __future__ import annotations

import numpy as np
import pytest

from minicache.exporter.calibration.delta_basis import DeltaTables, fit_delta_basis
from minicache.exporter.calibration.rope_probe import Rope
from minicache.exporter.calibration.rotation import rotate
from minicache.plugins.reference.delta import split_pair

TOKENS, HEADS, SIZE = 500, 2, 16


def pair(seed: int = 0, axes: int = SIZE) -> tuple[np.ndarray, np.ndarray]:
    """Two layers ``[n, Hk, D]`` that differ along ``axes`` components of a random basis."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((HEADS, SIZE, SIZE)))[0]
    scale = np.where(np.arange(SIZE) < axes, 0.9 ** np.arange(SIZE), 0.0)
    common = rng.standard_normal((TOKENS, HEADS, SIZE)) * (scale == 0)
    apart = rng.standard_normal((TOKENS, HEADS, SIZE)) * scale
    first, second = (np.einsum("nhk,hkd->nhd", x, basis) for x in (common + apart, common - apart))
    return first, second


def kept(rows: np.ndarray, first: np.ndarray, second: np.ndarray) -> float:
    """Share of the deltas' energy that lies in a basis, mean over heads."""
    deltas = split_pair(np.stack([first, second]))[1].swapaxes(0, 1)
    inside = deltas @ rows.swapaxes(1, 2)
    return float(np.mean((inside**2).sum(axis=(1, 2)) / (deltas**2).sum(axis=(1, 2))))


@pytest.mark.parametrize("rank", [1, 3, SIZE])
def test_rows_are_orthonormal_and_the_share_is_true(rank: int) -> None:
    """What is said to be kept is what a basis keeps; all of it at full rank."""
    first, second = pair()
    basis = fit_delta_basis(first, second, rank)
    assert basis.rows.shape == (HEADS, rank, SIZE)
    products = basis.rows @ basis.rows.swapaxes(1, 2)
    np.testing.assert_allclose(products, np.broadcast_to(np.eye(rank), products.shape), atol=1e-6)
    assert abs(basis.kept - kept(basis.rows, first, second)) < 1e-6
    assert (basis.kept > 1 - 1e-6) == (rank == SIZE)


def test_no_other_basis_keeps_more() -> None:
    """Random ones of the same rank keep less, and so does that of a centred analysis."""
    first, second = pair(seed=1)
    second = second + 3.0  # deltas with a mean, which no one subtracts
    basis, rng = fit_delta_basis(first, second, 2), np.random.default_rng(2)
    for _ in range(20):
        other = np.linalg.qr(rng.standard_normal((HEADS, SIZE, SIZE)))[0][:, :2]
        assert kept(other, first, second) < basis.kept
    deltas = split_pair(np.stack([first, second]))[1].swapaxes(0, 1)
    centred = deltas - deltas.mean(axis=1, keepdims=True)
    axes = np.linalg.eigh(centred.swapaxes(1, 2) @ centred)[1][:, :, ::-1][:, :, :2]
    assert kept(axes.swapaxes(1, 2), first, second) < basis.kept


def test_deltas_of_few_axes_need_no_more() -> None:
    first, second = pair(axes=3)
    assert fit_delta_basis(first, second, 3).kept > 1 - 1e-6
    assert fit_delta_basis(first, second, 2).kept < 0.9


def test_keys_are_moved_to_where_they_stand() -> None:
    """A basis for keys of all positions, from samples in the frame of their segments."""
    rope = Rope("rotary", (1.0, 0.2, 0.05, 0.01, 0.0, 0.0, 0.0, 0.0), False)
    first, second = (x.astype(np.float64) for x in pair(seed=3, axes=2))
    moved = fit_delta_basis(first, second, 4, rope, 4096)
    still = fit_delta_basis(first, second, 4)
    offsets = np.random.default_rng(4).integers(0, 4096, TOKENS)[:, None]
    there = [rotate(x, offsets, rope) for x in (first, second)]
    assert kept(moved.rows, *there) > kept(still.rows, *there) + 0.02
    assert abs(moved.kept - kept(moved.rows, *there)) < 0.1


def test_layers_that_are_alike_have_any_basis() -> None:
    """Without deltas nothing is lost, and there is no NaN."""
    first, _ = pair()
    basis = fit_delta_basis(first, first, 2)
    assert np.isfinite(basis.rows).all()
    assert basis.kept == 1


def test_tables_give_both_nodes_the_same_bases() -> None:
    """In the type of decoders; without an alignment no attributes but the plan's."""
    basis = fit_delta_basis(*pair(), 2)
    tables = DeltaTables({"key": basis, "value": basis})
    assert tables.attributes() == {}
    for slot in (0, 1):
        arrays = tables.arrays(slot, np.float16)
        assert list(arrays) == ["key_delta_basis", "value_delta_basis"]
        assert all(array.dtype == np.float16 for array in arrays.values())
        np.testing.assert_allclose(arrays["key_delta_basis"], basis.rows, atol=1e-3)
