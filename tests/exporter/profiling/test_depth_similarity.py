"""The similarity of neighbouring layers, from a calibration's samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from minicache.exporter.calibration.calibration import CalibratedLayer, Calibration
from minicache.exporter.calibration.moments import JointMoments, partners
from minicache.exporter.calibration.rope_probe import Rope
from minicache.exporter.profiling.depth_similarity import depth_similarity, mean_cosine

HEADS, SIZE = 2, 8


def calibration(
    keys: Sequence[np.ndarray], values: Sequence[np.ndarray], kinds: Sequence[int]
) -> Calibration:
    row = [HEADS * SIZE] * len(kinds)
    return Calibration(
        layers=tuple(
            CalibratedLayer(layer, HEADS, HEADS, SIZE, kind, Rope("none"))
            for layer, kind in enumerate(kinds)
        ),
        query_moments=[],
        output_metrics=[],
        moments={kind: JointMoments(partners(kinds, 2), row) for kind in ("key", "value")},
        samples={
            "key": [layer.astype(np.float16) for layer in keys],
            "value": [layer.astype(np.float16) for layer in values],
        },
        segment_length=0,
        max_sequence_length=64,
        sinks=0,
        tokens=len(keys[0]),
    )


@pytest.fixture
def vectors() -> np.ndarray:
    return np.random.default_rng(3).standard_normal((50, HEADS, SIZE))


def test_scaled_layers_are_alike_and_negated_ones_opposite(vectors: np.ndarray) -> None:
    found = depth_similarity(
        calibration([vectors, 3 * vectors, vectors], [vectors, -vectors, vectors], (0, 0, 0))
    )
    assert [pair["layers"] for pair in found] == [[0, 1], [1, 2]]
    assert [pair["key_cosine"] for pair in found] == pytest.approx([1.0, 1.0], abs=1e-3)
    assert [pair["value_cosine"] for pair in found] == pytest.approx([-1.0, -1.0], abs=1e-3)


def test_only_layers_of_one_kind_are_neighbours(vectors: np.ndarray) -> None:
    layers = [vectors, -vectors, vectors, -vectors, vectors]
    found = depth_similarity(calibration(layers, layers, (0, 1, 0, 1, 2)))
    assert [pair["layers"] for pair in found] == [[0, 2], [1, 3]]
    assert [pair["key_cosine"] for pair in found] == pytest.approx([1.0, 1.0], abs=1e-3)


def test_heads_are_matched_by_index(vectors: np.ndarray) -> None:
    swapped = vectors[:, ::-1]
    expected = np.mean(
        np.sum(vectors * swapped, -1)
        / np.linalg.norm(vectors, axis=-1)
        / np.linalg.norm(swapped, axis=-1)
    )
    assert mean_cosine(vectors, swapped) == pytest.approx(expected, abs=1e-3)


def test_vectors_without_a_direction_do_not_count(vectors: np.ndarray) -> None:
    holes = vectors.copy()
    holes[::2] = 0
    assert mean_cosine(vectors, holes) == pytest.approx(1.0, abs=1e-4)
    holes[1, 0, 0] = np.inf
    holes[3, 0, 0] = np.nan
    assert mean_cosine(vectors, holes) == pytest.approx(1.0, abs=1e-4)


def test_a_layer_of_zeros_has_no_cosine(vectors: np.ndarray) -> None:
    zeros = np.zeros_like(vectors)
    (pair,) = depth_similarity(calibration([vectors, zeros], [zeros, zeros], (0, 0)))
    assert pair == {"layers": [0, 1], "key_cosine": None, "value_cosine": None}


def test_constant_and_large_fp16_vectors_are_fine() -> None:
    large = np.full((4, HEADS, SIZE), 60000.0, np.float16)
    assert mean_cosine(large, large) == 1.0
    tiny = np.full((4, HEADS, SIZE), 6e-8, np.float16)
    assert mean_cosine(large, tiny) == 1.0


def test_a_single_layer_has_no_neighbour(vectors: np.ndarray) -> None:
    assert depth_similarity(calibration([vectors], [vectors], (0,))) == []
