"""ONNX Runtime's own attention on the same shapes, each driven the best way it offers.

GroupQueryAttention appends to a cache that is bound in place (``past_present_share_buffer``), as
TensorScatter does for ai.onnx Attention; a decomposed graph with Concat has no such way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.cpu.layer_chain import LayerChain, Layers
from benchmarks.cpu.step_shape import StepShape, random_like

GQA_FP32, GQA_FP16, GQA_INT8, GQA_INT4 = "GQA fp32", "GQA fp16", "GQA int8", "GQA int4"
MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Baseline:
    """What makes the layers, and how many bytes of cache a layer holds per token."""

    make: Callable[[StepShape, int, int], Layers]  # shape, layers, threads
    bytes_per_element: float


def _chain(shape: StepShape, dtype: str, four: bool = False) -> tuple[LayerChain, list[str]]:
    """A chain, and the names of its new keys and values; ``four``: heads before tokens."""
    rng = np.random.default_rng(0)

    def new(heads: int) -> np.ndarray:
        rows, tokens, size = shape.batch, shape.new_tokens, shape.head_size
        form = (rows, heads, tokens, size) if four else (rows, tokens, heads * size)
        return random_like(rng, form, np.dtype(dtype))

    chain = LayerChain(new(shape.heads))
    return chain, [chain.input(name, new(shape.kv_heads)) for name in ("key", "value")]


def gqa(dtype: str, cache: str, bits: int, shape: StepShape, layers: int, threads: int) -> Layers:
    """GroupQueryAttention; ``bits`` 0: the cache has no scales."""
    chain, new = _chain(shape, dtype)
    rng = np.random.default_rng(1)
    width = shape.head_size // 2 if bits == 4 else shape.head_size
    form = shape.batch, shape.kv_heads, shape.capacity, width
    lengths = [
        chain.input("seqlens_k", np.array(shape.totals, np.int32) - 1),
        chain.input("total_sequence_length", np.array(max(shape.totals), np.int32)),
    ]
    given = {"num_heads": shape.heads, "kv_num_heads": shape.kv_heads}
    scales: list[str] = []
    if bits:
        kind = {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL"}
        given |= {**kind, "kv_cache_bit_width": bits}
        scale = np.full((1, shape.kv_heads, 1, shape.head_size), 0.01 if bits == 8 else 0.1)
        scales = ["", "", "", "", "", *[chain.constant("scale", scale.astype(np.float32))] * 2]
    for layer in range(layers):
        pasts, presents = [], []
        for name in ("key", "value"):
            past = f"past_{name}_{layer}"
            pasts.append(chain.input(past, random_like(rng, form, np.dtype(cache))))
            presents.append(chain.output(f"present_{name}_{layer}", past))
        inputs = [chain.query, *new, *pasts, *lengths, *scales]
        outputs = [f"attention_{layer}", *presents]
        chain.layer(chain.node("GroupQueryAttention", inputs, outputs, MICROSOFT, **given))
    return chain.open(threads)


def attention(dtype: str, shape: StepShape, layers: int, threads: int) -> Layers:
    """ai.onnx Attention (opset 24) on what TensorScatter appended to in place."""
    chain, new = _chain(shape, dtype, four=True)
    rng = np.random.default_rng(1)
    form = shape.batch, shape.kv_heads, shape.capacity, shape.head_size
    pasts = np.array(shape.pasts, np.int64)
    totals = np.array(shape.totals, np.int64)
    where, valid = chain.input("write_indices", pasts), chain.input("valid", totals)
    for layer in range(layers):
        caches = []
        for name, fresh in zip(("key", "value"), new, strict=True):
            past = chain.input(f"past_{name}_{layer}", random_like(rng, form, np.dtype(dtype)))
            present = chain.output(f"present_{name}_{layer}", past)
            caches.append(chain.node("TensorScatter", [past, fresh, where], [present], axis=2))
        inputs = [chain.query, *caches, "", "", "", valid]
        chain.layer(chain.node("Attention", inputs, [f"attention_{layer}"]))
    return chain.open(threads)


def concat(dtype: str, shape: StepShape, layers: int, threads: int) -> Layers:
    """Concat, repeat_kv, MatMul, Softmax, MatMul: what optimum exports. Rows are of one length."""
    rows, heads, kv_heads, size = shape.batch, shape.heads, shape.kv_heads, shape.head_size
    total, past_length = max(shape.totals), max(shape.pasts)
    chain, new = _chain(shape, dtype, four=True)
    rng = np.random.default_rng(1)
    spread = [rows, kv_heads, heads // kv_heads, total, size]
    axis = chain.constant("axis", np.array([2], np.int64))
    expanded = chain.constant("expanded", np.array(spread, np.int64))
    repeated = chain.constant("repeated", np.array([rows, heads, total, size], np.int64))
    scale = chain.constant("scale", np.array(size**-0.5, dtype))
    for layer in range(layers):
        caches = []
        for name, fresh in zip(("key", "value"), new, strict=True):
            form = rows, kv_heads, past_length, size
            past = chain.input(f"past_{name}_{layer}", random_like(rng, form, np.dtype(dtype)))
            form = rows, kv_heads, total, size
            present = chain.fresh_output(f"present_{name}_{layer}", np.dtype(dtype), form)
            x = chain.node("Concat", [past, fresh], [present], axis=2)
            x = chain.node("Unsqueeze", [x, axis], [f"five_{name}_{layer}"])
            x = chain.node("Expand", [x, expanded], [f"expanded_{name}_{layer}"])
            caches.append(chain.node("Reshape", [x, repeated], [f"repeated_{name}_{layer}"]))
        turned = chain.node("Transpose", [caches[0]], [f"turned_{layer}"], perm=[0, 1, 3, 2])
        query = chain.node("Mul", [chain.query, scale], [f"scaled_{layer}"])
        x = chain.node("MatMul", [query, turned], [f"scores_{layer}"])
        x = chain.node("Softmax", [x], [f"weights_{layer}"], axis=-1)
        chain.layer(chain.node("MatMul", [x, caches[1]], [f"attention_{layer}"]))
    return chain.open(threads, opset=18)


BASELINES: dict[str, Baseline] = {
    GQA_FP32: Baseline(partial(gqa, "float32", "float32", 0), 4),
    GQA_FP16: Baseline(partial(gqa, "float16", "float16", 0), 2),
    GQA_INT8: Baseline(partial(gqa, "float32", "int8", 8), 1),
    GQA_INT4: Baseline(partial(gqa, "float32", "uint8", 4), 0.5),
    "Attention fp32": Baseline(partial(attention, "float32"), 4),
    "Concat fp32": Baseline(partial(concat, "float32"), 4),
}
