"""Codecs: what the operator's contract says, and what is lost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from minicache.exporter import schemas
from minicache.exporter.calibration.calibration import CalibratedLayer, Calibration
from minicache.exporter.calibration.codec import SubspaceCodec
from minicache.exporter.calibration.moments import JointMoments, head_moments, partners
from minicache.exporter.calibration.rope_probe import Rope
from minicache.exporter.calibration.rotation import rotate
from minicache.plugins.reference.subspace import encode_subspace
from minicache.runtime.errors import PlanError

TOKENS, HEADS, QUERY_HEADS, SIZE, LAYERS = 800, 2, 4, 16, 3
ROPE = Rope("rotary", tuple(float(np.float32(f)) for f in 100.0 ** (-np.arange(8) / 8)))


def make_layers(rank: int, seed: int = 0) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Keys and values of three layers that share ``rank`` factors per head, plus a little noise."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(2):
        factors = rng.standard_normal((HEADS, TOKENS, rank)) * 0.8 ** np.arange(rank)
        noise = rng.standard_normal((LAYERS, TOKENS, HEADS, SIZE)) * 0.02
        maps = rng.standard_normal((LAYERS, HEADS, rank, SIZE))
        layers = np.einsum("htr,lhrd->lthd", factors, maps) + noise
        made.append(list(layers.astype(np.float32)))
    return made[0], made[1]


def make_calibration(
    keys: Sequence[np.ndarray],
    values: Sequence[np.ndarray],
    rope: Rope = ROPE,
    kinds: Sequence[int] = (0, 0, 0),
) -> Calibration:
    rng = np.random.default_rng(9)
    row = [HEADS * SIZE] * LAYERS
    moments = {kind: JointMoments(partners(kinds, 3), row) for kind in ("key", "value")}
    moments["key"].add(keys, np.ones(TOKENS, np.float32))
    moments["value"].add(values, np.ones(TOKENS, np.float32))
    queries = rng.standard_normal((LAYERS, 200, QUERY_HEADS, SIZE))
    outputs = rng.standard_normal((LAYERS, HEADS, SIZE, 2 * SIZE))
    return Calibration(
        layers=tuple(
            CalibratedLayer(n, QUERY_HEADS, HEADS, SIZE, kind, rope) for n, kind in enumerate(kinds)
        ),
        query_moments=[head_moments(layer, HEADS) / 200 for layer in queries],
        output_metrics=[layer @ np.swapaxes(layer, 1, 2) for layer in outputs],
        moments=moments,
        samples={
            "key": [layer.astype(np.float16) for layer in keys],
            "value": [layer.astype(np.float16) for layer in values],
        },
        segment_length=64,
        max_sequence_length=512,
        sinks=4,
        tokens=TOKENS,
    )


@pytest.fixture(scope="module")
def layers() -> tuple[list[np.ndarray], list[np.ndarray]]:
    return make_layers(rank=12)


@pytest.fixture(scope="module")
def calibration(layers: tuple[list[np.ndarray], list[np.ndarray]]) -> Calibration:
    return make_calibration(*layers)


def stacked(layers: Sequence[np.ndarray], group: Sequence[int]) -> np.ndarray:
    return np.stack([layers[layer] for layer in group], axis=1)


def relative_error(restored: np.ndarray, vectors: np.ndarray) -> float:
    return float(np.linalg.norm(restored - vectors) / np.linalg.norm(vectors))


@pytest.mark.parametrize("group", [(0,), (0, 1), (0, 1, 2)])
@pytest.mark.parametrize("code_heads", [2, 1])
def test_shapes_follow_the_schema(
    calibration: Calibration, group: tuple[int, ...], code_heads: int
) -> None:
    codec = calibration.codec(group, code_heads, 12.0, 12.0)
    last = len(group) - 1
    attributes = schemas.attributes_with_defaults(
        {"num_heads": QUERY_HEADS, "kv_num_heads": HEADS, "head_size": SIZE, "group_slot": last}
        | codec.attributes()
    )
    arrays = codec.arrays(last)
    wanted = [name for name in schemas.input_names(attributes) if name in arrays]
    assert list(arrays) == wanted and len(wanted) == 7
    assert set(codec.arrays(0)) == (set(arrays) if last == 0 else set(wanted[:3]))
    joint = len(group) * HEADS // code_heads * SIZE
    for kind in ("key", "value"):
        count = sum(attributes[f"{kind}_bits"][1::2])
        assert arrays[f"{kind}_encoder"].shape == (code_heads, count, joint)
        assert arrays[f"{kind}_step"].shape == (code_heads, count)
        assert arrays[f"{kind}_decoder"].shape == (HEADS, count, SIZE)
        assert arrays[f"{kind}_encoder"].dtype == np.float32
        assert (arrays[f"{kind}_step"] > 0).all()


def test_more_bits_lose_less_and_expected_loss_is_met(
    calibration: Calibration, layers: tuple[list[np.ndarray], list[np.ndarray]]
) -> None:
    values = stacked(layers[1], (0, 1, 2))
    errors = []
    for bits in (1.5, 3.0, 6.0):
        codec = calibration.codec((0, 1, 2), 1, bits, bits)
        assert codec.value.bits_per_element <= bits
        errors.append(relative_error(codec.restore_values(values), values))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.05


def test_decoder_inverts_the_encoder_on_the_kept_subspace(calibration: Calibration) -> None:
    code = calibration.codec((0, 1, 2), 1, 9.0, 9.0).value
    # Without quantisation: decoder without its steps, times encoder, is the identity there.
    group, heads, count, size = code.decoder.shape
    stacked_decoder = code.decoder.transpose(2, 0, 1, 3).reshape(count, group * heads * size)
    product = code.encoder[0] @ (stacked_decoder / code.step[0][:, None]).T
    scale = np.diag(product)
    np.testing.assert_allclose(scale, 1.0, atol=0.1)  # the gains that undo clipping
    np.testing.assert_allclose(product / scale, np.eye(count), atol=1e-3)


def test_magnitudes_are_about_one(
    calibration: Calibration, layers: tuple[list[np.ndarray], list[np.ndarray]]
) -> None:
    _, magnitude = calibration.codec((0, 1), 2, 8.0, 8.0).value.encode(stacked(layers[1], (0, 1)))
    assert magnitude.dtype == np.float16
    np.testing.assert_allclose(magnitude.astype(np.float64).mean(axis=0), 1.0, rtol=0.05)


def test_segments_look_alike(
    calibration: Calibration, layers: tuple[list[np.ndarray], list[np.ndarray]]
) -> None:
    keys = stacked(layers[0], (0, 1))[:50]
    codec = calibration.codec((0, 1), 2, 6.0, 6.0)
    positions = np.arange(50)
    near = codec.restore_keys(keys, positions)
    moved = rotate(keys, 128, ROPE)  # the same text, two segments later
    far = codec.restore_keys(moved, positions + 128)
    # A component on the border of two levels may fall to either side after the rotation.
    difference = np.abs(far - rotate(near, 128, ROPE)).max(axis=(1, 2, 3))
    assert np.median(difference) < 1e-4 and np.mean(difference > 1e-3) < 0.1
    assert relative_error(far, moved) == pytest.approx(relative_error(near, keys), rel=0.05)


def test_agrees_with_the_reference_operator(
    calibration: Calibration, layers: tuple[list[np.ndarray], list[np.ndarray]]
) -> None:
    codec = calibration.codec((0, 1, 2), 2, 4.0, 4.0)
    attributes = schemas.attributes_with_defaults(
        {"num_heads": QUERY_HEADS, "kv_num_heads": HEADS, "head_size": SIZE, "group_slot": 2}
        | codec.attributes()
    )
    positions = np.arange(100, 300)
    keys = stacked(layers[0], (0, 1, 2))[:200]
    by_head = keys.transpose(1, 2, 0, 3)
    rows, magnitudes = encode_subspace(attributes, "key", by_head, positions, codec.arrays(2))
    offset = positions // 64 * 64
    levels, own = codec.key.encode(rotate(keys, -offset[:, None, None], ROPE))
    np.testing.assert_allclose(
        magnitudes[..., 0].T.astype(np.float32), own.astype(np.float32), rtol=2e-3
    )
    assert rows.shape == (2, 200, schemas.code_bytes(codec.key.bits))
    assert levels.shape == (200, 2, sum(codec.key.bits[1::2]))


def test_zero_vectors_are_restored_as_zero(calibration: Calibration) -> None:
    codec = calibration.codec((0, 1), 1, 6.0, 6.0)
    assert (codec.restore_values(np.zeros((3, 2, HEADS, SIZE), np.float32)) == 0).all()


def test_proxy_orders_groupings_as_the_codec_does(calibration: Calibration) -> None:
    alone = calibration.proxy_loss((0,), 1, 4.5, 4.5)
    joint = calibration.proxy_loss((0, 1, 2), 1, 4.5, 4.5)
    assert joint.value_relative < alone.value_relative
    assert joint.key_relative < alone.key_relative
    assert joint.score_error > 0 and joint.output_error > 0


@pytest.mark.parametrize(
    ("group", "code_heads", "bits", "message"),
    [
        ((1, 0), 1, 6.0, "ascending"),
        ((0, 9), 1, 6.0, "different ones"),
        ((), 1, 6.0, "different ones"),
        ((0, 1), 3, 6.0, "divisor of the 2 kv heads"),
        ((0,), 2, 1.0, "smallest one"),
    ],
)
def test_bad_groups_are_refused(
    calibration: Calibration, group: tuple[int, ...], code_heads: int, bits: float, message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        calibration.codec(group, code_heads, bits, bits)


def test_layers_of_unlike_kind_are_refused(
    layers: tuple[list[np.ndarray], list[np.ndarray]],
) -> None:
    calibration = make_calibration(*layers, kinds=(0, 1, 0))
    with pytest.raises(PlanError, match="different kind"):
        calibration.codec((0, 1), 1, 6.0, 6.0)
    assert isinstance(calibration.codec((0, 2), 1, 6.0, 6.0), SubspaceCodec)


def test_keys_without_rotation_have_no_segments(
    layers: tuple[list[np.ndarray], list[np.ndarray]],
) -> None:
    codec = make_calibration(*layers, rope=Rope("unknown")).codec((0, 1), 1, 6.0, 6.0)
    assert codec.segment_length == 0 and "rope_frequencies" not in codec.arrays(0)


def test_keys_of_an_fp16_model_are_turned_in_fp32(
    calibration: Calibration, layers: tuple[list[np.ndarray], list[np.ndarray]]
) -> None:
    """As the operator does: rounded to fp16 in between, many would fall to another level."""
    codec = calibration.codec((0, 1), 2, 8.0, 8.0)
    keys = stacked(layers[0], (0, 1)).astype(np.float16)
    positions = np.arange(len(keys))
    expected = codec.restore_keys(keys.astype(np.float32), positions)
    np.testing.assert_array_equal(codec.restore_keys(keys, positions), expected)
