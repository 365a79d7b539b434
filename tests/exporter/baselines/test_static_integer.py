"""Static integers: error bounds, ONNX Runtime's own operator, bytes."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from minicache.exporter.baselines.static_integer import StaticInteger, fit_scales, round_static
from minicache.runtime.errors import PlanError

LAYERS, HEADS, TOKENS, SIZE = 2, 2, 50, 16


def sample(seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    spread = rng.uniform(0.1, 10, (LAYERS, 1, HEADS, SIZE))
    vectors = rng.standard_normal((LAYERS, TOKENS, HEADS, SIZE)) * spread
    return list(vectors.astype(np.float32))


def by_head(layers: list[np.ndarray]) -> list[np.ndarray]:
    return [np.swapaxes(layer, 0, 1) for layer in layers]


@pytest.mark.parametrize("bits", [8, 4])
def test_error_is_at_most_half_a_step(bits: int) -> None:
    keys, values = sample(0), sample(1)
    codec = StaticInteger.fit(keys, values, bits, clip="largest")
    restored = codec.rewrite(by_head(keys), by_head(values), 0)
    for layers, scales, found in (
        (keys, codec.key_scales, restored[0]),
        (values, codec.value_scales, restored[1]),
    ):
        for layer, scale, array in zip(by_head(layers), scales, found, strict=True):
            assert (np.abs(array - layer) <= scale[:, None] * 0.5001).all()


def test_8_bit_is_nearly_lossless() -> None:
    keys, values = sample(0), sample(1)
    codec = StaticInteger.fit(keys, values, 8)
    found, _ = codec.rewrite(by_head(keys), by_head(values), 0)
    error = np.linalg.norm(found[0] - by_head(keys)[0]) / np.linalg.norm(keys[0])
    assert error < 0.01


@pytest.mark.parametrize("bits", [8, 4])
def test_least_squares_never_loses_more_than_the_largest_magnitude(bits: int) -> None:
    layer = sample(3)[0] ** 3  # long tails
    errors = [
        np.square(round_static(layer, fit_scales(layer, bits, clip), bits) - layer).mean(axis=0)
        for clip in ("least-squares", "largest")
    ]
    assert (errors[0] <= errors[1]).all()
    assert bits == 8 or errors[0].sum() < errors[1].sum()


def test_constant_channels_survive() -> None:
    constant = [np.full((TOKENS, HEADS, SIZE), value, np.float32) for value in (0.0, 3.0)]
    codec = StaticInteger.fit(constant, constant, 4, clip="largest")
    found, _ = codec.rewrite(by_head(constant), by_head(constant), 0)
    assert (found[0] == 0).all()
    np.testing.assert_allclose(found[1], 3.0, rtol=1e-6)


def test_bytes_and_what_is_coded() -> None:
    ones = tuple(np.ones((HEADS, SIZE), np.float32) for _ in range(LAYERS))
    per_token = 2 * LAYERS * HEADS * SIZE
    plain = StaticInteger(4, ones, ones)
    assert plain.bits_per_element == 4
    assert (plain.coded_end(0), plain.coded_end(7)) == (0, 7)
    assert plain.cache_bytes(100) == 100 * per_token // 2 + 4 * per_token
    kept = StaticInteger(8, ones, ones, sinks=4, window=10)
    assert [kept.coded_end(n) for n in (3, 14, 15, 30)] == [4, 4, 5, 20]
    assert kept.cache_bytes(100) == 86 * per_token + 4 * per_token + 14 * 2 * per_token
    assert kept.cache_bytes(2) == 4 * per_token + 2 * 2 * per_token


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(PlanError, match="3 bit is unknown"):
        StaticInteger.fit(sample(), sample(), 3)
    with pytest.raises(PlanError, match="window -1"):
        StaticInteger.fit(sample(), sample(), 8, window=-1)
    with pytest.raises(PlanError, match="at least one token"):
        StaticInteger.fit([layer[:0] for layer in sample()], sample(), 8)


def gqa_output(bits: int, query: np.ndarray, key: np.ndarray, value: np.ndarray,
               key_scale: np.ndarray, value_scale: np.ndarray) -> np.ndarray:  # fmt: skip
    """ONNX Runtime's operator on one prompt ``[S, D]`` of one head, through a quantised cache."""
    tokens, size = query.shape
    code = TensorProto.INT8 if bits == 8 else TensorProto.UINT8
    packed = size if bits == 8 else size // 2
    names = ["q", "k", "v", "past_k", "past_v", "last", "total", *[""] * 5, "k_scale", "v_scale"]
    node = helper.make_node(
        "GroupQueryAttention", names, ["out", "present_k", "present_v"], domain="com.microsoft",
        num_heads=1, kv_num_heads=1, kv_cache_bit_width=bits,
        k_quant_type="PER_CHANNEL", v_quant_type="PER_CHANNEL",
    )  # fmt: skip
    rows, cache = [1, tokens, size], [1, 1, 32, packed]
    shapes = {"q": rows, "k": rows, "v": rows, "k_scale": [size], "v_scale": [size]}
    info = helper.make_tensor_value_info
    inputs = [info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    inputs += [info(name, code, cache) for name in ("past_k", "past_v")]
    inputs += [info("last", TensorProto.INT32, [1]), info("total", TensorProto.INT32, [])]
    outputs = [info("out", TensorProto.FLOAT, rows)]
    outputs += [info(name, code, cache) for name in ("present_k", "present_v")]
    model = helper.make_model(
        helper.make_graph([node], "gqa", inputs, outputs),
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)],
        ir_version=8,
    )
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # the library raises many types
        pytest.skip(f"this ONNX Runtime has no quantised cache on CPU: {error}")
    empty = np.zeros(cache, np.int8 if bits == 8 else np.uint8)
    feeds = {
        "q": query[None], "k": key[None], "v": value[None], "past_k": empty, "past_v": empty,
        "last": np.array([tokens - 1], np.int32), "total": np.array(tokens, np.int32),
        "k_scale": key_scale, "v_scale": value_scale,
    }  # fmt: skip
    return np.asarray(session.run(["out"], feeds)[0][0])


@pytest.mark.parametrize("bits", [8, 4])
def test_equals_what_onnx_runtime_reads(bits: int) -> None:
    rng = np.random.default_rng(5)
    query, key, value = rng.standard_normal((3, 6, 32)).astype(np.float32)
    # Clipping and ties on purpose.
    scales = [0.7 * fit_scales(x[:, None], bits, "largest")[0] for x in (key, value)]
    scales[0][0], key[:, 0] = 0.5, [-1.25, -0.75, -0.25, 0.25, 0.75, 1.25]
    found = gqa_output(bits, query, key, value, *scales)
    read = [round_static(x, scale, bits) for x, scale in zip((key, value), scales, strict=True)]
    scores = query @ read[0].T / np.sqrt(32)
    scores[np.triu_indices(6, 1)] = -np.inf
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    expected = weights / weights.sum(axis=1, keepdims=True) @ read[1]
    np.testing.assert_allclose(found, expected, atol=1e-5)
