"""The parts of subspace mode: rotation, joint vectors, quantiser, and the frame of a segment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicache.plugins.reference import (
    encode_subspace,
    joint_vectors,
    new_state,
    pack_row,
    quantise_components,
    restored_subspace,
    rotate_by_positions,
    segment_offsets,
    unpack_row,
)
from tests.helpers import assert_close
from tests.plugins.plain_subspace import plain_code, plain_joint, plain_rope
from tests.plugins.subspace_text import make_tables, subspace_attributes
from tests.tolerances import FP16_ULP, SAME_FORMULA

SEEDS = st.integers(0, 2**32 - 1)
POSITIONS = st.integers(-5000, 5000)
PAIRS = st.integers(1, 8)  # of 16 components
BITS = st.sampled_from(
    [(8, 16), (4, 24), (2, 8), (8, 8, 4, 16, 2, 8), (8, 16, 2, 32), (4, 8, 2, 8)]
)


def rates(pairs: int) -> np.ndarray:
    """RoPE frequencies of a model with theta 10,000, as fp32."""
    return (10000.0 ** (-np.arange(pairs) / pairs)).astype(np.float32)


@given(SEEDS, POSITIONS, PAIRS, st.booleans())
def test_rotation_is_rope(seed: int, position: int, pairs: int, interleaved: bool) -> None:
    """Each pair is turned as a complex number; what lies beyond the pairs stays, bit by bit."""
    x = np.random.default_rng(seed).standard_normal((2, 3, 16))
    turned = rotate_by_positions(x, np.array([0, position, 1]), rates(pairs), interleaved)
    for t, p in enumerate((0, position, 1)):
        expected = plain_rope(x[1, t], p, rates(pairs), interleaved)
        assert_close(turned[1, t], expected, SAME_FORMULA)
    np.testing.assert_array_equal(turned[..., 2 * pairs :], x[..., 2 * pairs :])
    np.testing.assert_array_equal(turned[:, 0], x[:, 0])


@given(SEEDS, POSITIONS, POSITIONS, PAIRS, st.booleans())
def test_rotations_add_up_and_keep_products(
    seed: int, a: int, b: int, pairs: int, interleaved: bool
) -> None:
    """R(a) R(b) = R(a + b), and lengths and inner products stay."""
    x, y = np.random.default_rng(seed).standard_normal((2, 4, 16))

    def turn(vectors: np.ndarray, by: int) -> np.ndarray:
        return rotate_by_positions(vectors, by, rates(pairs), interleaved)

    assert_close(turn(turn(x, a), b), turn(x, a + b), SAME_FORMULA)
    assert_close(turn(turn(x, a), -a), x, SAME_FORMULA)
    assert_close(turn(x, a) @ turn(y, a).T, x @ y.T, SAME_FORMULA)


@given(SEEDS, st.integers(1, 2048), st.integers(0, 20000), st.integers(0, 20000), st.booleans())
def test_scores_do_not_depend_on_the_frame(
    seed: int, length: int, i: int, p: int, interleaved: bool
) -> None:
    """The score of a key in its segment's frame is plain RoPE's: that of the distance alone."""
    q, k = np.random.default_rng(seed).standard_normal((2, 1, 16))
    offset = int(segment_offsets(p, length))

    def turn(vectors: np.ndarray, by: int) -> np.ndarray:
        return rotate_by_positions(vectors, by, rates(6), interleaved)

    cached, query = turn(k, p), turn(q, i)
    framed = turn(cached, -offset)
    assert_close(framed, turn(k, p - offset), SAME_FORMULA)
    assert 0 <= p - offset < length
    score = turn(query, -offset) @ framed.T
    scale = np.linalg.norm(q) * np.linalg.norm(k)
    assert abs(score - query @ cached.T) < SAME_FORMULA * scale
    assert abs(score - turn(q, i - p) @ k.T) < SAME_FORMULA * scale


def test_segments_start_at_multiples_of_their_length() -> None:
    """Offsets are floor(p / L) * L, and 0 where segments are off."""
    assert segment_offsets(np.array([0, 7, 8, 15, 16, 1000]), 8).tolist() == [0, 0, 8, 8, 16, 1000]
    assert segment_offsets(np.array([3, 5000]), 0).tolist() == [0, 0]


def test_joint_vectors_hold_layers_then_slots_then_components() -> None:
    """Index (g * J + j) * D + d, slots in matched order: by hand, for two layers of four heads."""
    order = (3, 1, 0, 2, 1, 2, 3, 0)
    attributes = subspace_attributes(
        num_heads=4, kv_num_heads=4, code_heads=2, group_size=2, head_size=2,
        key_head_permutation=order,
    )  # fmt: skip
    g, h, t, d = np.meshgrid(*map(np.arange, (2, 4, 3, 2)), indexing="ij")
    vectors = 1000 * g + 100 * h + 10 * t + d
    keys = joint_vectors(attributes, "key", vectors)
    assert keys.shape == (2, 3, 8)
    assert keys[0, 0].tolist() == [300, 301, 100, 101, 1100, 1101, 1200, 1201]
    assert keys[1, 2].tolist() == [20, 21, 220, 221, 1320, 1321, 1020, 1021]
    assert joint_vectors(attributes, "value", vectors)[1, 0, :4].tolist() == [200, 201, 300, 301]


@given(SEEDS, st.sampled_from([(1, 1), (3, 1), (3, 3), (4, 2), (6, 3)]), st.integers(1, 3))
def test_joint_vectors_of_any_permutation(seed: int, heads: tuple[int, int], group: int) -> None:
    """The same order as plain loops, for permutations drawn at random."""
    rng = np.random.default_rng(seed)
    order = tuple(int(h) for _ in range(group) for h in rng.permutation(heads[0]))
    attributes = subspace_attributes(
        num_heads=heads[0], kv_num_heads=heads[0], code_heads=heads[1], group_size=group,
        head_size=8, value_head_permutation=order,
    )  # fmt: skip
    vectors = rng.standard_normal((group, heads[0], 2, 8))
    joint = joint_vectors(attributes, "value", vectors)
    for hc in range(heads[1]):
        expected = plain_joint(attributes, "value", vectors[:, :, 1], hc)
        np.testing.assert_array_equal(joint[hc, 1], expected)


def test_known_levels() -> None:
    """Floor, middle and clamp by hand: y = (3, -4) has m = 5."""
    y, steps = np.zeros(16), np.full(16, 0.25)
    y[0], y[9] = 3.0, -4.0
    (eight, two), m = quantise_components(y, steps, (8, 8, 2, 8))
    assert m == 5
    assert eight.tolist() == [128 + 2, *[128] * 7]  # floor(0.6 / 0.25) = 2
    assert two.tolist() == [2, 0, *[2] * 6]  # floor(-0.8 / 0.25) = -4, clamped from -2 to 0
    (four, _), _ = quantise_components(y, steps / 10, (4, 8, 2, 8))
    assert four.tolist() == [15, *[8] * 7]  # floor(24) is clamped to 7
    (eight, _), _ = quantise_components(-y, np.full(16, 0.7), (8, 8, 2, 8))
    assert eight[0] == 127  # floor(-0.86) = -1


@pytest.mark.parametrize("bad", [0.0, np.inf, -np.inf, np.nan, 1e39, 1e-46])
def test_nothing_and_not_finite_store_the_middle(bad: float) -> None:
    """Zero, infinite and NaN components, in fp32, store 2^(b-1) everywhere and m = 0."""
    y = np.zeros((2, 24)) if abs(bad) < 1 else np.ones((2, 24))
    y[0, 5], y[1] = bad, np.arange(24) - 11.5
    segments, m = quantise_components(y, np.full(24, 0.01), (8, 8, 4, 8, 2, 8))
    assert [set(s[0].tolist()) for s in segments] == [{128}, {8}, {2}]
    assert m[0] == 0
    assert m[1] > 0
    assert len(set(segments[0][1].tolist())) > 1


@given(SEEDS, BITS, st.floats(1e-3, 1e3))
def test_quantiser_follows_the_words(seed: int, bits: tuple[int, ...], scale: float) -> None:
    """Levels and lengths equal plain loops; inside the grid a component is half a step away."""
    rng = np.random.default_rng(seed)
    count = sum(bits[1::2])
    y, step = scale * rng.standard_normal((3, count)), rng.uniform(0.01, 0.5, count)
    segments, m = quantise_components(y, step, bits)
    levels, values, _ = plain_code(y[2], step, bits)
    assert np.concatenate([s[2] for s in segments]).tolist() == levels
    widths = np.repeat(bits[0::2], bits[1::2])
    inside = np.abs(y[2] / (m[2] * step)) < 2.0 ** (widths - 1) - 0.01
    error = np.abs(np.array(values) * m[2] * step - y[2])
    assert (error[inside] <= 0.5 * (m[2] * step)[inside] * (1 + 1e-4)).all()


@given(SEEDS, BITS)
def test_mixed_segments_come_back_from_their_bytes(seed: int, bits: tuple[int, ...]) -> None:
    """Packing the levels of every segment and unpacking them changes nothing."""
    rng = np.random.default_rng(seed)
    count = sum(bits[1::2])
    segments, _ = quantise_components(rng.standard_normal((5, count)), np.full(count, 0.1), bits)
    for actual, expected in zip(unpack_row(pack_row(segments, bits), bits), segments, strict=True):
        np.testing.assert_array_equal(actual, expected)


def coded_and_restored(
    attributes: dict[str, Any],
    tables: list[dict[str, np.ndarray]],
    vectors: np.ndarray,
    positions: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Codes keys ``[G, Hk, tokens, D]`` at any positions; restores layer 0, and returns both."""
    rows, magnitudes = encode_subspace(attributes, "key", vectors, positions, tables[-1])
    state = new_state(attributes, 1, 16 * (int(positions.max()) // 16 + 1))
    state["key_code"][0][:, positions] = rows
    state["key_magnitude"][0][:, positions] = magnitudes
    end = int(positions.max()) + 1
    restored = restored_subspace(attributes, state, "key", 0, end, tables[0])
    return rows, restored[:, positions]


@pytest.mark.parametrize("segment", [0, 16])
@pytest.mark.parametrize("heads", [(1, 1), (4, 2)], ids=str)
def test_a_restored_key_is_within_the_quantisers_bound(
    segment: int, heads: tuple[int, int]
) -> None:
    """With a full orthogonal encoder and fine steps, a key is off by half a step per component.

    The bound is the same at any position: nothing is lost by the frame of the segment.
    """
    joint = 16 * heads[0] // heads[1]
    attributes = subspace_attributes(
        num_heads=heads[0], kv_num_heads=heads[0], code_heads=heads[1], sinks=0,
        segment_length=segment, key_bits=(8, joint), key_head_permutation=tuple(range(heads[0])),
    )  # fmt: skip
    tables = make_tables(attributes)
    positions = np.arange(3, 400, 7)
    vectors = np.random.default_rng(5).standard_normal((1, heads[0], positions.size, 16))
    _, restored = coded_and_restored(attributes, tables, vectors, positions)
    each = heads[0] // heads[1]
    error = np.linalg.norm((restored - vectors[0]).reshape(heads[1], each, -1, 16), axis=(1, 3))
    length = np.linalg.norm(vectors[0].reshape(heads[1], each, -1, 16), axis=(1, 3))
    half_steps = np.linalg.norm(tables[-1]["key_step"] / 2, axis=-1)[:, None]
    assert (error <= length * (half_steps + FP16_ULP)).all()


def test_every_segment_looks_like_the_first() -> None:
    """A text that repeats every L tokens, before RoPE, has the same key codes in each segment."""
    length = 16
    attributes = subspace_attributes(group_size=2, sinks=0, segment_length=length)
    tables, positions = make_tables(attributes), np.arange(5 * length)
    before = np.random.default_rng(2).standard_normal((2, 1, length, 16))
    vectors = np.tile(before, (1, 1, 5, 1))
    keys = rotate_by_positions(vectors, positions, tables[0]["rope_frequencies"])
    rows, _ = coded_and_restored(attributes, tables, keys, positions)
    for segment in range(1, 5):
        at = slice(segment * length, (segment + 1) * length)
        np.testing.assert_array_equal(rows[:, at], rows[:, :length])
    rows, _ = coded_and_restored({**attributes, "segment_length": 0}, tables, keys, positions)
    assert (rows[:, length : 2 * length] != rows[:, :length]).any()


def test_magnitudes_saturate_and_values_are_not_rotated() -> None:
    """Lengths beyond fp16 store 65504 beside the same levels; values have no frame."""
    attributes = subspace_attributes(segment_length=8)
    (tables,) = make_tables(attributes)
    vectors = np.random.default_rng(3).standard_normal((1, 1, 4, 16))
    near, far = np.arange(4), np.arange(800, 804)
    rows, magnitudes = encode_subspace(attributes, "value", vectors, near, tables)
    again = encode_subspace(attributes, "value", vectors, far, tables)
    np.testing.assert_array_equal(again[0], rows)
    moved, _ = encode_subspace(attributes, "key", vectors, far, tables)
    assert (moved != encode_subspace(attributes, "key", vectors, near, tables)[0]).any()
    huge, saturated = encode_subspace(attributes, "value", vectors * 2.0**20, near, tables)
    np.testing.assert_array_equal(huge, rows)
    assert (saturated == 65504).all()
    assert magnitudes.dtype == np.float16
    assert magnitudes.shape == (1, 4, 1)
