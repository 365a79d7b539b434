"""Codes: quantiser, packing into rows, tiles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicache.exporter.schemas import SEGMENT_ALIGNMENT, code_bytes
from minicache.plugins.reference import (
    dequantise,
    pack_row,
    quantise,
    row_to_tile,
    tile_to_row,
    unpack_row,
)
from tests.plugins.plain import plain_grid

SEEDS = st.integers(0, 2**32 - 1)
SEGMENTS = st.lists(
    st.tuples(st.sampled_from([16, 8, 4, 2]), st.integers(1, 20).map(lambda n: 4 * n)),
    min_size=1,
    max_size=4,
)


def random_components(rng: np.random.Generator, bits: list[int], tokens: int) -> list[np.ndarray]:
    """Random components of every segment, ``[tokens, count]``."""
    return [
        rng.standard_normal((tokens, count)).astype(np.float16)
        if width == 16
        else rng.integers(0, 2**width, (tokens, count), np.uint8)
        for width, count in zip(bits[0::2], bits[1::2], strict=True)
    ]


@given(SEEDS, SEGMENTS)
def test_unpacking_undoes_packing(seed: int, segments: list[tuple[int, int]]) -> None:
    """Every list of segments comes back from its row, and the row has the declared bytes."""
    bits = [number for segment in segments for number in segment]
    components = random_components(np.random.default_rng(seed), bits, tokens=3)
    rows = pack_row(components, bits)
    assert rows.shape == (3, code_bytes(tuple(bits)))
    for actual, expected in zip(unpack_row(rows.view(np.int8), bits), components, strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(
    ("width", "count", "used"), [(16, 4, 8), (8, 5, 5), (4, 10, 5), (2, 12, 3)]
)
def test_padding_is_zero(width: int, count: int, used: int) -> None:
    """A segment is padded with zeros to 4 bytes."""
    value = np.float16(1 / 3) if width == 16 else np.uint8(2**width - 1)
    full = np.full((1, count), value)
    row = pack_row([full], (width, count))[0]
    assert row.size == -(-used // SEGMENT_ALIGNMENT) * SEGMENT_ALIGNMENT
    assert row[:used].all()
    assert not row[used:].any()


def test_planes_lie_from_the_low_bits_up() -> None:
    """4 bit: byte j holds j and j + D/2; 2 bit: four planes; fp16: little endian."""
    assert list(pack_row([np.array([1, 2, 3, 4])], (4, 4))[:2]) == [0x31, 0x42]
    levels = np.array([0, 1, 1, 2, 2, 3, 3, 0])
    assert list(pack_row([levels], (2, 8))[:2]) == [0b11100100, 0b00111001]
    assert list(pack_row([np.array([1.0, -2.0], np.float16)], (16, 2))[:4]) == [0, 0x3C, 0, 0xC0]


@pytest.mark.parametrize("kind", ["key", "value"])
@given(seed=SEEDS, tiles=st.integers(1, 4), words=st.integers(1, 12))
def test_tiles_hold_the_same_bytes(kind: str, seed: int, tiles: int, words: int) -> None:
    """The tile layout is a permutation of the row layout, and is undone."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(-128, 128, (2, 16 * tiles, 16 * words)).astype(np.int8)
    np.testing.assert_array_equal(tile_to_row(row_to_tile(rows, kind), kind), rows)


def test_tile_addresses() -> None:
    """Byte j of token c: keys at [c/16][j/4][c%16][j%4], values at [c/4][j][c%4]."""
    capacity, size = 48, 32
    rows = np.random.default_rng(0).integers(-128, 128, (capacity, size)).astype(np.int8)
    keys, values = row_to_tile(rows, "key").ravel(), row_to_tile(rows, "value").ravel()
    for c in range(capacity):
        for j in range(size):
            assert keys[((c // 16 * (size // 4) + j // 4) * 16 + c % 16) * 4 + j % 4] == rows[c, j]
            assert values[(c // 4 * size + j) * 4 + c % 4] == rows[c, j]


@pytest.mark.parametrize("bits", [8, 4])
@given(seed=SEEDS, size=st.integers(1, 64), scale=st.floats(1e-6, 1e6))
def test_quantiser_error_is_at_most_half_a_step(
    bits: int, seed: int, size: int, scale: float
) -> None:
    """Each component comes back within half a step, and the largest one exactly."""
    x = scale * np.random.default_rng(seed).standard_normal((4, 2 * size))
    levels, step = quantise(x, bits)
    restored = dequantise(levels, bits) * step[:, None]
    assert (np.abs(restored - x) <= step[:, None] * 0.5 * (1 + 1e-9)).all()
    np.testing.assert_allclose(step, np.abs(x).max(axis=-1) / ((2**bits - 1) / 2), rtol=1e-12)
    np.testing.assert_allclose(np.abs(restored).max(axis=-1), np.abs(x).max(axis=-1), rtol=1e-9)
    np.testing.assert_allclose(restored[0], plain_grid(x[0], bits), rtol=1e-9)


@pytest.mark.parametrize("bits", [8, 4])
def test_zero_direction_stores_the_middle(bits: int) -> None:
    """A zero direction stores 2^(b-1) and a step of 0, so that its magnitudes become 0."""
    levels, step = quantise(np.zeros((1, 8)), bits)
    assert (levels == 2 ** (bits - 1)).all()
    assert step == 0


def test_16_bits_are_half_precision() -> None:
    """16 bits store the direction as fp16 with step 1."""
    x = np.random.default_rng(1).standard_normal((3, 8))
    components, step = quantise(x, 16)
    np.testing.assert_array_equal(components, x.astype(np.float16))
    assert (step == 1).all()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: quantise(np.ones(4), 3), "3 bits"),
        (lambda: pack_row([np.ones(3)], (4, 3)), "3 components"),
        (lambda: pack_row([np.ones(4)], (8, 5)), "not 5"),
        (lambda: pack_row([], (8, 4)), "0 segments"),
        (lambda: unpack_row(np.zeros(4, np.int8), (8, 8)), "4 bytes, not 8"),
        (lambda: unpack_row(np.zeros(4, np.int8), (3, 8)), "3 bits"),
    ],
)
def test_mistakes_are_named(call, words: str) -> None:  # type: ignore[no-untyped-def]
    """A code that cannot be packed raises ValueError with the numbers that were found."""
    with pytest.raises(ValueError, match=words):
        call()
