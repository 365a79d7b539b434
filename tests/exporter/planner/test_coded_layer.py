"""A coded layer: one layer's keys or values change, and nothing else."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from minicache.exporter.calibration.calibration import Calibration
from minicache.exporter.planner.coded_layer import CodedLayer
from tests.exporter.calibration.test_codec import HEADS, make_calibration, make_layers

START, TOKENS = 70, 30  # within the second segment


@pytest.fixture(scope="module")
def layers() -> tuple[list[np.ndarray], list[np.ndarray]]:
    return make_layers(rank=12)


@pytest.fixture(scope="module")
def calibration(layers: tuple[list[np.ndarray], list[np.ndarray]]) -> Calibration:
    return make_calibration(*layers)


def test_its_place_is_among_the_coded_layers(
    calibration: Calibration, layers: tuple[list[np.ndarray], list[np.ndarray]]
) -> None:
    """In a model whose layers 0 to 4 keep rings, layer 5 comes first."""
    codec = dataclasses.replace(calibration.codec((0,), HEADS, 6.0, 4.0), layers=(5,))
    keys, values = ([np.swapaxes(layer[:TOKENS], 0, 1) for layer in rows] for rows in layers)
    found, _ = CodedLayer(codec, 0, "key", sinks=4, window=8).rewrite(keys, values, START)
    same = [np.array_equal(*pair) for pair in zip(keys, found, strict=True)]
    assert same == [False, True, True]


@pytest.mark.parametrize("kind", ["key", "value"])
def test_only_its_own_vectors_are_replaced(
    calibration: Calibration, layers: tuple[list[np.ndarray], list[np.ndarray]], kind: str
) -> None:
    """By what the codec restores at these positions."""
    codec = calibration.codec((1,), HEADS, 6.0, 4.0)
    coded = CodedLayer(codec, 1, kind, sinks=4, window=8)
    keys, values = ([np.swapaxes(layer[:TOKENS], 0, 1) for layer in rows] for rows in layers)
    found = coded.rewrite(keys, values, START)
    for name, before, after in zip(("key", "value"), (keys, values), found, strict=True):
        for layer in range(3):
            same = np.array_equal(before[layer], after[layer])
            assert same == (name != kind or layer != 1)
    own = layers[kind == "value"][1][:TOKENS, None]
    if kind == "key":
        expected = codec.restore_keys(own, np.arange(START, START + TOKENS))
    else:
        expected = codec.restore_values(own)
    np.testing.assert_array_equal(np.swapaxes(found[kind == "value"][1], 0, 1), expected[:, 0])
    bits = codec.key if kind == "key" else codec.value
    assert coded.bits_per_element == bits.bits_per_element
    assert [coded.coded_end(past) for past in (2, 12, 40)] == [4, 4, 32]
    assert coded.name == f"{kind}s of layer 1"
