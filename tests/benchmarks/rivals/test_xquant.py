"""XQuant and XQuant-CL: nearly exact at 8 bits, what a delta is, bytes, whole groups."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.rivals.xquant import TOKEN_GROUP, XQuant
from benchmarks.rivals.xquant_cl import BASE_LAYERS, XQuantCl
from minicache.runtime.errors import PlanError
from tests.benchmarks.rivals.vectors import (
    HEADS,
    LAYERS,
    ROPES,
    SHAPE,
    SIZE,
    cache,
    error,
    projections,
)  # fmt: skip

GROUPED, MULTI_HEAD = 2 * HEADS * SIZE + 64, HEADS * SIZE  # widths of X
Kind = type[XQuant] | type[XQuantCl]


def of_inputs(width: int, tokens: int) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
    """Keys and values that the projections make of inputs X, and X before the norm's weight."""
    from benchmarks.rivals.rows import from_rows, unrotate

    rng = np.random.default_rng(3)
    x = rng.standard_normal((tokens, width)).astype(np.float32)
    inputs, keys, values = [], [], []
    for layer in projections(width):
        # Neighbouring layers are alike, as in a residual stream.
        x = x + 0.2 * rng.standard_normal(x.shape).astype(np.float32)
        inputs.append(x)
        keys.append(from_rows((x * layer.gain) @ layer.key + layer.key_bias, HEADS))
        values.append(from_rows((x * layer.gain) @ layer.value + layer.value_bias, HEADS))
    return unrotate(keys, ROPES, 0, back=True), values, np.stack(inputs)


@pytest.mark.parametrize("kind", [XQuant, XQuantCl])
@pytest.mark.parametrize("width", [GROUPED, MULTI_HEAD])
def test_more_bits_are_better_and_8_nearly_lossless(kind: Kind, width: int) -> None:
    keys, values, _ = of_inputs(width, 2 * TOKEN_GROUP)
    losses = []
    for bits in (2, 3, 4, 8):
        codec = kind(bits, SHAPE, projections(width), ROPES)
        found = codec.rewrite(keys, values, 0)
        losses.append((error(found[0], keys), error(found[1], values)))
    assert np.all(np.diff(losses, axis=0) < 0)
    # XQuant-CL keeps three layers at 8 bit and adds fp16 rounding of every layer below.
    assert max(losses[-1]) < 0.02


@pytest.mark.parametrize("start", [0, 4, 1000])
def test_keys_are_coded_before_rope(start: int) -> None:
    """The same keys before RoPE lose the same wherever they stand."""
    from benchmarks.rivals.rows import unrotate

    keys, values, _ = of_inputs(GROUPED, TOKEN_GROUP)
    plain = unrotate(keys, ROPES, 0)
    codec = XQuant(3, SHAPE, projections(GROUPED), ROPES, sinks=start % 8)
    moved = unrotate(plain, ROPES, start, back=True)
    found = codec.rewrite(moved, values, start)[0]
    here = codec.rewrite(keys, values, 0)[0]
    np.testing.assert_allclose(
        np.stack(unrotate(found, ROPES, start)), np.stack(unrotate(here, ROPES, 0)), atol=2e-3
    )


def test_a_delta_is_what_the_carried_input_lacks() -> None:
    """In a chain without noise the deltas are what quantisation of the layers below left."""
    keys, values, _ = of_inputs(GROUPED, 8)
    codec = XQuantCl(8, SHAPE, projections(GROUPED), ROPES)
    held = codec.encode(keys, values, 0)
    latent = [layer.encode for layer in codec.latents]
    from benchmarks.rivals.rows import to_rows, unrotate

    plain = unrotate(keys, ROPES, 0)
    rows = [np.concatenate([to_rows(k), to_rows(v)], 1) for k, v in zip(plain, values, strict=True)]
    base = BASE_LAYERS - 1
    np.testing.assert_allclose(held[base].read(), latent[base](rows[base]), atol=0.05)
    carried = held[base].read() @ codec.latents[base].basis.T
    lacking = latent[base + 1](rows[base + 1]) - carried @ codec.latents[base + 1].basis
    np.testing.assert_allclose(held[base + 1].read(), lacking, atol=0.05)


def test_layers_that_are_alike_have_small_deltas() -> None:
    """With one input for all layers and projections that read all of it, deltas are errors only."""
    weights = projections(MULTI_HEAD)
    keys, values, inputs = of_inputs(MULTI_HEAD, 16)
    codec = XQuantCl(4, SHAPE, weights, ROPES)
    held = codec.encode(keys, values, 0)
    size = [float(np.linalg.norm(codes.read())) for codes in held]
    change = np.linalg.norm(inputs[-1] - inputs[-2])
    assert size[-1] < 1.5 * change < 0.5 * size[0]


@pytest.mark.parametrize("kind", [XQuant, XQuantCl])
@pytest.mark.parametrize("width", [GROUPED, MULTI_HEAD])
def test_bytes_counted_are_bytes_held(kind: Kind, width: int) -> None:
    codec = kind(3, SHAPE, projections(width), ROPES, sinks=4, window=64)
    context = 4 + 64 + 2 * TOKEN_GROUP
    coded = codec.coded_end(context) - 4
    assert coded == 2 * TOKEN_GROUP
    held = codec.encode(*cache(coded), 4)
    flat = [part for layer in held for part in (layer if isinstance(layer, list) else [layer])]
    assert sum(part.nbytes for part in flat) + SHAPE.fp16_bytes(68) == codec.cache_bytes(context)


def test_multi_head_models_hold_one_input_instead_of_keys_and_values() -> None:
    """Half the numbers, as the paper says: 4 bit of X are 2 bit of keys and values."""
    codec = XQuant(4, SHAPE, projections(MULTI_HEAD), ROPES)
    assert codec.bits_per_element == (4 + 32 / 128) / 2
    grouped = XQuant(4, SHAPE, projections(GROUPED), ROPES)
    assert grouped.bits_per_element == ((4 + 32 / 64) + (4 + 32 / 128)) / 2
    deltas = XQuantCl(2, SHAPE, projections(GROUPED), ROPES)
    assert deltas.bits_per_element == (3 * 4 + (LAYERS - 3) * 2) / LAYERS + 32 / 128


def test_bad_parameters_are_refused() -> None:
    codec = XQuant(4, SHAPE, projections(GROUPED), ROPES)
    with pytest.raises(PlanError, match="whole groups of 64 tokens, not 65"):
        codec.rewrite(*cache(65), 0)
    makers: list[Callable[[], object]] = [
        lambda: XQuant(5, SHAPE, projections(GROUPED), ROPES),
        lambda: XQuantCl(1, SHAPE, projections(GROUPED), ROPES),
    ]
    for make in makers:
        with pytest.raises(PlanError, match="bit are unknown to this method"):
            make()
    with pytest.raises(PlanError, match="sinks is -1"):
        XQuantCl(4, SHAPE, projections(GROUPED), ROPES, sinks=-1)
