"""The alignment of a group: what it finds, and the tables that the operator takes."""

from __future__ import annotations

import numpy as np
import pytest

from minicache.exporter import schemas
from minicache.exporter.calibration.alignment import Alignment
from minicache.exporter.calibration.calibration import Calibration
from minicache.exporter.calibration.matching import aligned_cosine, match_heads
from minicache.exporter.calibration.rope_probe import Rope
from minicache.exporter.plan_aligned import group_cosines
from minicache.plugins.reference.align import aligned_heads
from minicache.runtime.errors import PlanError
from tests.exporter.calibration.test_codec import (
    HEADS,
    LAYERS,
    QUERY_HEADS,
    ROPE,
    SIZE,
    TOKENS,
    make_calibration,
)

ORDERS = {"key": ((0, 1), (1, 0), (0, 1)), "value": ((0, 1), (0, 1), (1, 0))}
NODE = {"num_heads": QUERY_HEADS, "kv_num_heads": HEADS, "head_size": SIZE, "mode": "slerp"}


def rotated_layers(seed: int = 0, noise: float = 0.0) -> dict[str, list[np.ndarray]]:
    """Layers that hold one content, each head in a basis of its own, heads in ``ORDERS``."""
    rng = np.random.default_rng(seed)
    found = {}
    for kind, orders in ORDERS.items():
        content = rng.standard_normal((TOKENS, HEADS, SIZE)) * 0.9 ** np.arange(SIZE)
        layers = []
        for order in orders:
            lengths = rng.uniform(0.5, 2.0, (TOKENS, HEADS, 1))
            turned = content + noise * rng.standard_normal(content.shape)
            bases = np.linalg.qr(rng.standard_normal((HEADS, SIZE, SIZE)))[0]
            layer = np.empty_like(content)
            layer[:, list(order)] = lengths * np.einsum("thd,hde->the", turned, bases)
            layers.append(layer.astype(np.float32))
        found[kind] = layers
    return found


@pytest.fixture(scope="module")
def layers() -> dict[str, list[np.ndarray]]:
    return rotated_layers()


@pytest.fixture(scope="module")
def calibration(layers: dict[str, list[np.ndarray]]) -> Calibration:
    return make_calibration(layers["key"], layers["value"])


def test_rotated_copies_become_one(calibration: Calibration) -> None:
    """Heads are matched and bases recovered: cosine 1 where it was about 0."""
    alignment = calibration.alignment((0, 1, 2))
    assert alignment.key.permutation == ORDERS["key"]
    assert alignment.value.permutation == ORDERS["value"]
    cosines = group_cosines(calibration, alignment)
    assert cosines["layers"] == [0, 1, 2]
    for kind in ORDERS:
        assert abs(cosines[f"{kind}_raw"]) < 0.3
        assert cosines[f"{kind}_aligned"] > 0.99


def test_unlike_layers_become_more_alike() -> None:
    """With noise, the mean cosine still rises well above that of the raw vectors."""
    noisy = rotated_layers(1, noise=0.5)
    calibration = make_calibration(noisy["key"], noisy["value"])
    cosines = group_cosines(calibration, calibration.alignment((0, 1)))
    assert 0.4 < cosines["value_aligned"] < 0.95


def test_maps_are_orthogonal_and_the_first_layer_stays(calibration: Calibration) -> None:
    for bases in (calibration.alignment((1, 2)).key, calibration.alignment((0, 1, 2)).value):
        gram = bases.maps @ np.swapaxes(bases.maps, 2, 3)
        identities = np.broadcast_to(np.eye(SIZE), gram.shape)
        np.testing.assert_array_equal(bases.maps[0], identities[0])
        np.testing.assert_allclose(gram, identities, atol=1e-5)


def test_tables_follow_the_schema(calibration: Calibration) -> None:
    alignment = calibration.alignment((0, 1, 2))
    for slot in range(LAYERS):
        given = NODE | {"group_size": LAYERS, "group_slot": slot} | alignment.attributes()
        attributes = schemas.attributes_with_defaults(given)
        arrays = alignment.arrays(slot, np.float16)
        names = schemas.input_names(attributes)
        assert list(arrays) == [name for name in names if name in arrays]
        assert arrays["key_decoder"].shape == (HEADS, SIZE, SIZE)
        assert arrays["key_decoder"].dtype == np.float16
        assert arrays["rope_frequencies"].tolist() == list(ROPE.frequencies)
    assert arrays["value_encoder"].shape == (HEADS, SIZE, LAYERS * SIZE)
    assert attributes["key_head_permutation"] == (0, 1, 1, 0, 0, 1)


def test_agrees_with_the_reference_operator(
    calibration: Calibration, layers: dict[str, list[np.ndarray]]
) -> None:
    """The operator's encoder gives the vectors that were fitted, and its decoder undoes it."""
    alignment = calibration.alignment((0, 1, 2))
    attributes = schemas.attributes_with_defaults(
        NODE | {"group_size": LAYERS, "group_slot": 2} | alignment.attributes()
    )
    vectors = np.stack(layers["value"]).swapaxes(1, 2)[:, :, :50]
    tables = alignment.arrays(2)
    aligned = aligned_heads(attributes, "value", vectors, np.arange(50), tables)
    for slot, layer in enumerate(layers["value"]):
        mine = alignment.value.align(slot, layer[:50]).swapaxes(0, 1)
        np.testing.assert_allclose(aligned[slot], mine, atol=1e-4)
        order = list(alignment.value.permutation[slot])
        back = aligned[slot] @ alignment.arrays(slot)["value_decoder"][order]
        np.testing.assert_allclose(back, vectors[slot][order], atol=1e-4)


def test_keys_without_rotation_have_no_segments(layers: dict[str, list[np.ndarray]]) -> None:
    calibration = make_calibration(layers["key"], layers["value"], rope=Rope("unknown"))
    alignment = calibration.alignment((0, 1))
    assert alignment.attributes()["segment_length"] == 0
    assert "rope_frequencies" not in alignment.arrays(0)


@pytest.mark.parametrize(
    ("group", "words"), [((), "different ones"), ((0, 9), "different ones"), ((1, 0), "ascending")]
)
def test_bad_groups_are_refused(
    calibration: Calibration, group: tuple[int, ...], words: str
) -> None:
    with pytest.raises(PlanError, match=words):
        calibration.alignment(group)


def test_layers_of_unlike_kind_are_refused(layers: dict[str, list[np.ndarray]]) -> None:
    calibration = make_calibration(layers["key"], layers["value"], kinds=(0, 1, 0))
    with pytest.raises(PlanError, match="different kind"):
        calibration.alignment((0, 1))
    assert isinstance(calibration.alignment((0, 2)), Alignment)


def test_heads_are_matched_by_what_a_rotation_can_do() -> None:
    """The measure is the cosine after the best rotation, whatever the lengths."""
    eye = np.eye(4)
    assert aligned_cosine(eye, eye, eye) == pytest.approx(1.0)
    assert aligned_cosine(eye, 4 * eye, 2 * eye[::-1]) == pytest.approx(1.0)
    assert aligned_cosine(eye, eye, np.zeros((4, 4))) == pytest.approx(0.0)
    zeros, crosses = np.zeros((3, 4, 4)), np.zeros((3, 3, 4, 4))
    assert sorted(match_heads(zeros, zeros, crosses, aligned_cosine)) == [0, 1, 2]
