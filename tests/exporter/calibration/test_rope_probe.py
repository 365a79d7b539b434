"""RoPE is found by what it does to keys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from minicache.exporter.calibration.rope_probe import (
    Rope,
    fit_rope,
    probe_positions,
    probe_rope,
    share_ropes,
)
from minicache.exporter.calibration.rotation import (
    average_over_offsets,
    rotate,
    segment_offset,
)
from minicache.exporter.io import load_model, read_facts
from minicache.exporter.normalise import normalise

FIXTURES = Path(__file__).parents[2] / "fixtures"


def make_keys(rope: Rope, size: int, limit: int = 4096) -> tuple[np.ndarray, list[int]]:
    positions = probe_positions(limit)
    start = np.random.default_rng(3).standard_normal((1, 6, size))
    return rotate(
        np.repeat(start, len(positions), 0), np.array(positions)[:, None], rope
    ), positions


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotated", [32, 16])
def test_frequencies_of_half_split_interleaved_and_partial(interleaved: bool, rotated: int) -> None:
    frequencies = 1e5 ** (-np.arange(0, rotated, 2) / rotated)
    keys, positions = make_keys(Rope("rotary", tuple(frequencies), interleaved), 32)
    found = fit_rope(keys, positions)
    assert (found.kind, found.interleaved) == ("rotary", interleaved)
    np.testing.assert_allclose(found.frequencies[: rotated // 2], frequencies, rtol=1e-5)
    assert found.residual < 1e-3


def test_keys_that_do_not_move_have_none() -> None:
    keys, positions = make_keys(Rope("none"), 16)
    assert fit_rope(keys, positions) == Rope("none")


def test_learned_positions_and_switched_frequencies_are_unknown() -> None:
    rope = Rope("rotary", tuple(0.5 ** np.arange(8)))
    keys, positions = make_keys(rope, 16)
    noise = np.random.default_rng(0).standard_normal((len(positions), 1, 16))
    assert fit_rope(keys + noise, positions).kind == "unknown"
    slower, _ = make_keys(Rope("rotary", tuple(0.6 ** np.arange(8))), 16)
    switched = np.where(np.array(positions)[:, None, None] > 100, slower, keys)
    assert fit_rope(switched, positions).kind == "unknown"


def plain(theta: float, size: int) -> np.ndarray:
    return theta ** (-np.arange(0, size, 2) / size)


# The llama3 fixtures scale their frequencies by length (rope_type llama3); phi3 rotates every
# component of its small heads.
@pytest.mark.parametrize(
    ("name", "pairs"),
    [
        ("onnx-llama3-gqa-optimum-fp16", 4),
        ("onnx-llama3-gqa-optimum-fp32", 4),
        ("onnx-phi3-optimum-fp32", 8),
        ("onnx-qwen3-optimum-fp32", 16),
        ("genai-qwen3-cpu-fp32", 16),
        ("genai-llama3-gqa-h16-cpu-int4", 8),
    ],
)
def test_fixtures(name: str, pairs: int) -> None:
    folder = FIXTURES / name
    normalised = normalise(load_model(folder))
    found = probe_rope(normalised.model, read_facts(folder).max_positions or 512)
    assert len(found) == len(normalised.layers)
    assert all(rope == found[0] for rope in found)  # equal layers get equal numbers
    assert found[0].kind == "rotary" and not found[0].interleaved
    assert len(found[0].frequencies) == pairs
    if "llama3" not in name:
        np.testing.assert_allclose(found[0].frequencies, plain(1e4, 2 * pairs), rtol=1e-3)
    else:
        assert found[0].frequencies[0] == pytest.approx(1.0, abs=1e-3)
        assert found[0].frequencies[-1] < plain(5e5, 2 * pairs)[-1] / 2  # slowed down by scaling


def test_a_pair_that_one_layer_does_not_use_is_known_from_another() -> None:
    """As in Gemma 3, whose key norm scales pairs of some layers to nothing, each layer others."""
    true, other = plain(1e6, 32), plain(1e4, 32)
    made = [make_keys(Rope("rotary", tuple(rope)), 32) for rope in (true, other, true)]
    keys, positions = [one[0] for one in made], made[0][1]
    noise = np.random.default_rng(2)
    for layer, pair in ((0, 3), (2, 1)):
        keys[layer][..., [pair, pair + 16]] = 1e-7 * noise.standard_normal((len(positions), 6, 2))
    alone = [fit_rope(one, positions) for one in keys]
    assert not alone[0].same_as(alone[2])
    found = share_ropes(alone, keys, positions)
    assert found[0] == found[2] != found[1]
    np.testing.assert_allclose(found[0].frequencies, true, rtol=1e-4)
    np.testing.assert_allclose(found[1].frequencies, other, rtol=1e-4)


def test_layers_of_other_rotations_share_nothing() -> None:
    kinds = [
        Rope("rotary", tuple(plain(1e4, 32))),
        Rope("rotary", tuple(plain(1.02e4, 32))),
        Rope("rotary", tuple(plain(1e4, 16))),
        Rope("rotary", tuple(plain(1e4, 32)), interleaved=True),
        Rope("none"),
    ]
    made = [make_keys(rope, 32) for rope in kinds]
    keys, positions = [one[0] for one in made], made[0][1]
    alone = [fit_rope(one, positions) for one in keys]
    assert share_ropes(alone, keys, positions) == alone


def test_rotations_add_up_and_keep_scores() -> None:
    rng = np.random.default_rng(5)
    rope = Rope("rotary", tuple(1e4 ** (-np.arange(4) / 4)), interleaved=True)
    query, key = rng.standard_normal((2, 7, 12))
    twice = rotate(rotate(key, 300, rope), 1000, rope)
    np.testing.assert_allclose(twice, rotate(key, 1300, rope), atol=1e-10)
    np.testing.assert_array_equal(twice[:, 8:], key[:, 8:])
    back_query, back_key = rotate(query, -1024, rope), rotate(key, -1024, rope)
    np.testing.assert_allclose((back_query * back_key).sum(-1), (query * key).sum(-1))


def test_segments() -> None:
    assert segment_offset([0, 1023, 1024, 3000], 1024).tolist() == [0, 0, 1024, 2048]
    assert segment_offset([5, 5000], 0).tolist() == [0, 0]


def test_average_over_offsets_is_the_mean_of_rotated_moments() -> None:
    rng = np.random.default_rng(1)
    rope = Rope("rotary", (1.0, 0.01))
    queries = rng.standard_normal((50, 6))
    moments = queries.T @ queries
    averaged = average_over_offsets(moments, rope, 4096, own_share=0.0)
    assert np.trace(averaged) == pytest.approx(np.trace(moments))
    np.testing.assert_allclose(averaged, averaged.T, atol=1e-9)
    np.testing.assert_allclose(averaged[4:, 4:], moments[4:, 4:])  # not rotated
    assert abs(averaged[0, 2]) < 0.1 * abs(moments[0, 2]) + 1  # fast pairs forget their phase
    half = average_over_offsets(moments, rope, 4096, own_share=0.5)
    np.testing.assert_allclose(half, (averaged + moments) / 2)
    np.testing.assert_array_equal(average_over_offsets(moments, Rope("unknown"), 4096), moments)


def test_graphs_of_one_row_are_probed_row_by_row() -> None:
    """As exporters write them: the batch of one is a constant in their Reshapes."""
    model = normalise(load_model(FIXTURES / "onnx-llama3-gqa-optimum-fp32")).model
    expected = probe_rope(model, 64)
    (embedding,) = (
        use.node for use in model.graph.inputs[0].uses() if use.node.op_type == "Gather"
    )
    hidden = embedding.outputs[0]
    readers = list(hidden.uses())
    shape = ir.node("Constant", [], {"value_ints": [1, -1, 64]})
    row = ir.node("Reshape", [hidden, shape.outputs[0]])
    for use in readers:
        use.node.replace_input_with(use.idx, row.outputs[0])
    model.graph.insert_after(embedding, [shape, row])
    assert probe_rope(model, 64, one_row=True) == expected
    assert probe_rope(model, 64) != expected
