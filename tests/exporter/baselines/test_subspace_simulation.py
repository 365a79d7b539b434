"""The simulated subspace codec restores what the reference operator restores."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from minicache.exporter import schemas
from minicache.exporter.baselines.cache_shape import CacheShape
from minicache.exporter.baselines.subspace_simulation import SubspaceSimulation, bytes_per_token
from minicache.exporter.calibration.calibration import Calibration
from minicache.plugins.reference import encode_subspace, new_state, restored_subspace
from minicache.runtime.errors import PlanError
from tests.exporter.calibration.test_codec import (
    HEADS,
    LAYERS,
    QUERY_HEADS,
    SIZE,
    make_calibration,
    make_layers,
)

SHAPE = CacheShape(LAYERS, HEADS, SIZE)
SINKS, TOKENS = 4, 156


@pytest.fixture(scope="module")
def layers() -> tuple[list[np.ndarray], list[np.ndarray]]:
    return make_layers(rank=12)


@pytest.fixture(scope="module")
def calibration(layers: tuple[list[np.ndarray], list[np.ndarray]]) -> Calibration:
    return make_calibration(*layers)


def test_restores_what_the_reference_restores(
    calibration: Calibration, layers: tuple[list[np.ndarray], list[np.ndarray]]
) -> None:
    groups = (calibration.codec((0, 1), 1, 6.0, 6.0), calibration.codec((2,), 2, 8.0, 8.0))
    simulation = SubspaceSimulation(groups, SHAPE, sinks=SINKS)
    positions = np.arange(SINKS, SINKS + TOKENS)  # over several segments
    keys, values = ([np.swapaxes(layer[:TOKENS], 0, 1) for layer in kind] for kind in layers)
    found = dict(zip(("key", "value"), simulation.rewrite(keys, values, SINKS), strict=True))
    given = {"key": keys, "value": values}
    for codec in groups:
        writer = len(codec.layers) - 1
        base = {"num_heads": QUERY_HEADS, "kv_num_heads": HEADS, "head_size": SIZE, "sinks": SINKS}
        for slot, layer in enumerate(codec.layers):
            attributes = schemas.attributes_with_defaults(
                base | codec.attributes() | {"group_slot": slot, "code_layout": "row"}
            )
            tables = codec.arrays(writer) | codec.arrays(slot)
            state = new_state(attributes, 1, 160, 0, np.float32)
            for kind in ("key", "value"):
                vectors = np.stack([given[kind][n] for n in codec.layers])
                rows, magnitudes = encode_subspace(attributes, kind, vectors, positions, tables)
                state[f"{kind}_code"][0][:, positions] = rows
                state[f"{kind}_magnitude"][0][:, positions] = magnitudes
                expected = restored_subspace(attributes, state, kind, 0, SINKS + TOKENS, tables)
                difference = np.abs(found[kind][layer] - expected).max(axis=(0, 2))
                # fp32 against fp64: a component on the border of two levels may fall to either.
                assert np.mean(difference > 1e-4 * np.abs(expected).max()) < 0.05


def test_layers_between_may_keep_rings(
    calibration: Calibration, layers: tuple[list[np.ndarray], list[np.ndarray]]
) -> None:
    """Groups count all layers of the model, the arguments only the coded ones."""
    pair, last = calibration.codec((0, 1), 1, 6.0, 6.0), calibration.codec((2,), 2, 8.0, 8.0)
    keys, values = ([np.swapaxes(layer[:TOKENS], 0, 1) for layer in kind] for kind in layers)
    expected = SubspaceSimulation((pair, last), SHAPE).rewrite(keys, values, SINKS)
    moved = tuple(
        dataclasses.replace(codec, layers=tuple(6 * layer + 5 for layer in codec.layers))
        for codec in (last, pair)
    )
    found = SubspaceSimulation(moved, SHAPE).rewrite(keys, values, SINKS)
    np.testing.assert_array_equal(np.array(found), np.array(expected))


def test_bytes_and_bits(calibration: Calibration) -> None:
    groups = (calibration.codec((0, 1), 1, 6.0, 6.0), calibration.codec((2,), 2, 8.0, 8.0))
    simulation = SubspaceSimulation(groups, SHAPE, sinks=4, window=10, ring_slots=20)
    codes = sum(bytes_per_token(code) for group in groups for code in (group.key, group.value))
    assert simulation.cache_bytes(1000) == 1000 * codes + 24 * 2 * SHAPE.elements_per_token
    assert simulation.bits_per_element == pytest.approx(8 * codes / SHAPE.elements_per_token)
    assert [simulation.coded_end(n) for n in (3, 14, 20)] == [4, 4, 10]


def test_every_layer_must_be_covered_once(calibration: Calibration) -> None:
    pair = calibration.codec((0, 1), 1, 6.0, 6.0)
    for groups in ((pair,), (pair, pair)):
        with pytest.raises(PlanError, match="each of the 3 layers"):
            SubspaceSimulation(groups, SHAPE)
