"""What a layer's attention takes on a GPU, beside PyTorch's attention on an fp16 cache.

A measurement runs over several layers, each with a cache of its own, that together fit no cache of
the GPU: as the layers of a model do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention import SDPBackend, bias, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks import estimate_gpu
from benchmarks.gpu import layers
from benchmarks.gpu.device_group import GpuEngine
from benchmarks.gpu.layers import FORMATS, HEADS, Format, LayerMaker, node_keys
from benchmarks.gpu.timing import Run, graph_of, median_ms

CONTEXTS = (4096, 16384, 65536)
BATCHES = (1, 16)
PREFILL, PREFILL_PASTS = 2048, (0, 14336)
SPREAD = 256 * 2**20  # bytes that no cache of a GPU holds
MOST_LAYERS = 16
BACKENDS = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION)
Row = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """Rows, cached tokens and new ones."""

    batch: int
    past: int
    new_tokens: int = 1


DECODE = tuple(Shape(batch, past) for past in CONTEXTS for batch in BATCHES)
PROMPTS = tuple(Shape(1, past, PREFILL) for past in PREFILL_PASTS)


def speed_keys() -> list[str]:
    """The kernels that are timed."""
    keys: dict[str, None] = {}
    for form in FORMATS:
        for shape in (*DECODE, *PROMPTS):
            capacity = -(-(shape.past + shape.new_tokens) // 16) * 16
            keys |= dict.fromkeys(node_keys(form, shape.batch, shape.new_tokens, capacity))
    return list(keys)


def layers_of(size: int, shape: Shape) -> int:
    """How many layers of ``size`` bytes are timed together; prompts are long enough alone."""
    return max(1, min(MOST_LAYERS, SPREAD // max(size, 1))) if shape.new_tokens == 1 else 1


def sdpa_ms(shape: Shape) -> tuple[float, dict[str, float]]:
    """PyTorch's attention on fp16 keys and values: the fastest way, and all ways that run."""
    heads, kv_heads, size = HEADS["num_heads"], HEADS["kv_num_heads"], HEADS["head_size"]
    tokens = shape.past + shape.new_tokens
    count = layers_of(4 * shape.batch * kv_heads * tokens * size, shape)
    half: dict[str, Any] = {"dtype": torch.float16, "device": layers.DEVICE}
    pairs = [
        [torch.randn(shape.batch, kv_heads, tokens, size, **half) for _ in range(2)]
        for _ in range(count)
    ]
    query = torch.randn(shape.batch, heads, shape.new_tokens, size, **half)
    repeats, prompt = heads // kv_heads, shape.new_tokens > 1
    causal: dict[str, Any] = {"is_causal": True} if prompt else {}
    if prompt and shape.past:
        causal = {"attn_mask": bias.causal_lower_right(shape.new_tokens, tokens)}

    def grouped() -> None:
        for key, value in pairs:
            scaled_dot_product_attention(query, key, value, enable_gqa=True, **causal)

    def as_rows() -> None:  # of one head: all see the same tokens
        folded = query.view(shape.batch, kv_heads, repeats, size)
        for key, value in pairs:
            scaled_dot_product_attention(folded, key, value)

    def repeated() -> None:
        for key, value in wide:
            scaled_dot_product_attention(query, key, value, **causal)

    ways: dict[str, Run] = {"grouped": grouped}
    ways |= {"repeated": repeated} if prompt else {"rows": as_rows}
    wide = [[x.repeat_interleave(repeats, 1) for x in pair] for pair in pairs] if prompt else []
    found: dict[str, float] = {}
    for backend in BACKENDS:
        for name, run in ways.items():
            try:
                with sdpa_kernel(backend):
                    found[f"{backend.name.lower()}, {name}"] = median_ms(graph_of(run)) / count
            except (RuntimeError, ValueError):  # this backend does not take such shapes
                continue
    return min(found.values(), default=float("nan")), found


def estimate_ms(form: Format, shape: Shape, device: estimate_gpu.Device) -> float:
    """What ``estimate_gpu`` says of a layer's decode step, its share of the encoding included."""
    model = estimate_gpu.Model("layer", 1, *(HEADS[name] for name in HEADS))
    name = "exact" if form.bits == 16 else form.name
    paper = estimate_gpu.Format(
        name, form.bits, form.layers, form.kept, decoder="subspace" in form.name
    )
    return 1e3 * estimate_gpu.step(model, paper, shape.past, shape.batch).seconds(device)


def layer_row(
    engine: GpuEngine, form: Format, shape: Shape, sdpa: float, copy: float,
    device: estimate_gpu.Device,
) -> Row:  # fmt: skip
    """Times one format at one shape; ``copy`` is the roofline in bytes/s."""
    maker = LayerMaker(engine, form, shape.batch, shape.past, shape.new_tokens)
    made = [maker.make()]
    size = made[0].cached + made[0].tables
    made += [maker.make() for _ in range(layers_of(size, shape) - 1)]

    def runner(lists: list[Any]) -> Run:
        def run() -> None:
            for each in lists:
                engine.enqueue(each)

        return run

    reads, writes = (runner([getattr(layer, name) for layer in made])
                     for name in ("attention", "encode"))  # fmt: skip
    attention = median_ms(graph_of(reads)) / len(made)
    encode = median_ms(graph_of(writes)) / len(made)
    eager = median_ms(reads) / len(made)
    total = attention + encode / form.layers
    row = {
        "format": form.name,
        "batch": shape.batch,
        "past": shape.past,
        "new": shape.new_tokens,
        "attention ms": attention,
        "eager ms": eager,
        "encode ms": encode,
        "layer ms": total,
        "SDPA ms": sdpa,
        "SDPA / layer": sdpa / total,
        "GB/s": size / attention / 1e6,
        "of copy": size / attention / 1e-3 / copy,
        "MiB": size / 2**20,
    }
    if shape.new_tokens == 1:
        row["estimate ms"] = estimate_ms(form, shape, device)
    return row


def speed_rows(
    engine: GpuEngine, copy: float, device: estimate_gpu.Device, deadline: float,
    say: Callable[[Mapping[str, Any]], None],
) -> Iterator[Row]:  # fmt: skip
    """Times everything until the time is up; what fails is a row with ``error``.

    ``say`` is told of each baseline.
    """
    # What tells most comes first: the time may be up.
    for shape in (*reversed(DECODE), *PROMPTS):
        baseline = float("nan")
        for form in (None, *FORMATS):
            where = {"format": form.name if form else "SDPA", **vars(shape)}
            if time.monotonic() > deadline:
                yield where | {"error": "no time was left"}
                continue
            try:
                if form is None:
                    baseline, ways = sdpa_ms(shape)
                    say(where | {"ms": baseline, "ways": ways})
                else:
                    yield layer_row(engine, form, shape, baseline, copy, device)
            except Exception as error:  # the others go on
                yield where | {"error": f"{type(error).__name__}: {error}"}
            torch.cuda.empty_cache()
