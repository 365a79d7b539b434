"""Layers of a model as the timings need them: formats, and nodes with random tensors on a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.gpu.device_group import GpuEngine, node_attributes
from benchmarks.gpu.native import LaunchList
from minicache.exporter import schemas
from minicache.plugins.gpu_plan import GpuPlan, PlacedTensor, gpu_plan
from minicache.plugins.triton.variant import parse_key

HEADS = {"num_heads": 32, "kv_num_heads": 8, "head_size": 128}  # Llama-3-8B
WINDOW = {"window": 64, "sinks": 4, "ring_slots": 128}
BASIS = {"mode": "subspace", "has_decoder": 1, "segment_length": 1024}
DEVICE = "cuda"
ATTENTION = ("active", "project", "attend_codes", "attend_exact", "finish")  # the rest encodes
_TYPES = {
    "float16": torch.float16, "float32": torch.float32, "int32": torch.int32, "int8": torch.int8,
}  # fmt: skip


def _subspace(group: int, *bits: int) -> dict[str, Any]:
    return {**HEADS, **WINDOW, **BASIS, "group_size": group, "key_bits": bits, "value_bits": bits}


def _slerp(bits: int) -> dict[str, Any]:
    both = {"key_bits": (bits, 128), "value_bits": (bits, 128)}
    return {**HEADS, **WINDOW, "mode": "slerp", "group_size": 2, **both}


@dataclass(frozen=True)
class Format:
    """How a cache is kept: attributes of its nodes, and what ``estimate_gpu`` is told of it."""

    name: str
    attributes: Mapping[str, Any]
    bits: float
    kept: float = 1.0

    @property
    def layers(self) -> int:
        """Layers of a group."""
        return int(self.attributes.get("group_size", 1))


# Made up so that bits and shares of kept components are those of the plans in `estimate_gpu`, in
# segments of whole 16 bytes.
FORMATS = (
    Format("exact fp16", HEADS, 16),
    Format("slerp 8 bit, G = 2", _slerp(8), 8 / 2),
    Format("slerp 4 bit, G = 2", _slerp(4), 4 / 2),
    Format("subspace 3 bit, G = 2", _subspace(2, 8, 16, 4, 128, 2, 64), 3, 0.81),
    Format("subspace 2 bit, G = 2", _subspace(2, 4, 96, 2, 64), 2, 0.63),
    Format("subspace 3 bit, G = 4", _subspace(4, 8, 32, 4, 256, 2, 128), 3, 0.81),
    Format("subspace 2 bit, G = 4", _subspace(4, 8, 16, 4, 128, 2, 192), 2, 0.66),
)


def writer(form: Format) -> dict[str, Any]:
    """Complete attributes of a group's last node, which does what the others do, and encodes."""
    return node_attributes(form.attributes, form.layers - 1)


def tensor_specs(
    attributes: Mapping[str, Any], batch: int, new_tokens: int, capacity: int
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """NumPy type and shape of every tensor of a node in fp16, its attention among them."""
    a = attributes
    heads, kv_heads, size = a["num_heads"], a["kv_num_heads"], a["head_size"]
    code_heads = a["code_heads"]
    new = batch, new_tokens, kv_heads * size
    specs: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name in schemas.input_names(a):
        kind = "value" if name.startswith("value") else "key"
        components = sum(a[f"{kind}_bits"][1::2])
        if name.startswith("past_") and name != "past_lengths":
            state = name.removeprefix("past_")
            element = "int8" if state.endswith("code") else "float16"
            specs[name] = element, schemas.state_shape(state, a, batch, capacity)
        elif name.endswith("lengths"):
            specs[name] = "int32", (batch,)
        elif name == "rope_frequencies":
            specs[name] = "float32", (size // 2,)
        elif name.endswith("decoder"):
            specs[name] = "float16", (kv_heads, components, size)
        elif name.endswith("encoder"):
            joint = a["group_size"] * kv_heads // code_heads * size
            specs[name] = "float16", (code_heads, components, joint)
        elif name.endswith("step"):
            specs[name] = "float32", (code_heads, components)
        else:
            specs[name] = "float16", (batch, new_tokens, heads * size) if name == "query" else new
    return specs | {"attention": ("float16", (batch, new_tokens, heads * size))}


def node_keys(form: Format, batch: int, new_tokens: int, capacity: int) -> list[str]:
    """The kernels of a call; no device is needed."""
    placed = {
        name: PlacedTensor(element, shape)
        for name, (element, shape) in tensor_specs(
            writer(form), batch, new_tokens, capacity
        ).items()
    }
    return [launch.key for launch in gpu_plan(writer(form), placed).launches]


def random_tensor(element: str, shape: Sequence[int]) -> torch.Tensor:
    """What kernels can reckon with: any bytes as codes, small numbers elsewhere."""
    if element == "int8":
        return torch.randint(-128, 128, tuple(shape), dtype=torch.int8, device=DEVICE)
    made = torch.empty(tuple(shape), dtype=_TYPES[element], device=DEVICE)
    return made.uniform_(0.01, 0.1) if made.is_floating_point() else made.zero_()


@dataclass
class Layer:
    """A node on a GPU with a cache of ``past`` tokens in every row, and its launches.

    Attributes:
        attention: loaded launches that read the cache.
        encode: loaded launches that write it.
        cached: bytes of cached codes, magnitudes and exact vectors that attention reads.
        tables: bytes of decoders.
    """

    attention: LaunchList
    encode: LaunchList
    cached: int
    tables: int
    tensors: dict[str, torch.Tensor] = field(repr=False)


class LayerMaker:
    """Makes layers that share their scratch and all but the cache and tables of a node."""

    def __init__(
        self, engine: GpuEngine, form: Format, batch: int, past: int, new_tokens: int = 1
    ) -> None:
        self.engine, self.attributes = engine, writer(form)
        self.past, self.new_tokens = past, new_tokens
        capacity = -(-(past + new_tokens) // 16) * 16
        self.specs = tensor_specs(self.attributes, batch, new_tokens, capacity)
        own = ("past_", "key_decoder", "value_decoder")
        self.shared = {n: random_tensor(*s) for n, s in self.specs.items() if not n.startswith(own)}
        self.shared["past_lengths"] = torch.full((batch,), past, dtype=torch.int32, device=DEVICE)
        self.shared["total_lengths"].fill_(past + new_tokens)
        self.scratch = torch.empty(0, dtype=torch.uint8, device=DEVICE)

    def plan(self, tensors: Mapping[str, torch.Tensor], **options: int) -> GpuPlan:
        """The launches on some tensors."""
        placed = {
            name: PlacedTensor(element, shape, tensors[name].data_ptr())
            for name, (element, shape) in self.specs.items()
        }
        sizes = gpu_plan(self.attributes, placed, options=options)
        if self.scratch.numel() < sizes.scratch:
            self.scratch = torch.empty(sizes.scratch, dtype=torch.uint8, device=DEVICE)
        where = {"table": self.engine.table(sizes.table), "scratch": self.scratch.data_ptr()}
        return gpu_plan(self.attributes, placed, options=options, **where)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The shared tensors, and new ones of a layer's own."""
        return {
            name: self.shared[name] if name in self.shared else random_tensor(*spec)
            for name, spec in self.specs.items()
        }

    def make(self) -> Layer:
        """A layer of its own memory."""
        tensors = self.tensors()
        launches = self.plan(tensors).launches
        reads = [each for each in launches if parse_key(each.key).kernel in ATTENTION]
        writes = [each for each in launches if parse_key(each.key).kernel not in ATTENTION]
        cached, tables = self.bytes_read()
        load = self.engine.load
        return Layer(load(reads), load(writes), cached, tables, tensors)

    def bytes_read(self) -> tuple[int, int]:
        """Of the cache and of decoders, by attention."""
        a, cached, tables = self.attributes, 0, 0
        coded = a["mode"] != "exact"
        exact = min(self.past, a["sinks"] + a["window"]) if coded else self.past
        for name, (element, shape) in self.specs.items():
            size = {"int8": 1, "float16": 2}.get(element, 4)
            if name in ("past_exact_key", "past_exact_value"):
                cached += shape[0] * shape[2] * exact * shape[4] * size
            elif name.startswith("past_") and coded and name != "past_lengths":
                per_token = 1 if name.endswith("magnitude") else shape[3]
                cached += shape[0] * shape[1] * max(0, self.past - exact) * per_token * size
            elif name.endswith("decoder"):
                tables += shape[0] * shape[1] * shape[2] * size
        return cached, tables
