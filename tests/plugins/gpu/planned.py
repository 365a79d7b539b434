"""Plans of a node at made-up addresses, and what is in them."""

from __future__ import annotations

from typing import Any

from minicache.exporter import schemas
from minicache.plugins.gpu_plan import GpuPlan, PlacedTensor, gpu_plan
from minicache.plugins.triton.signatures import SIGNATURES


def plan_of(
    attributes: dict[str, Any],
    *,
    batch: int = 1,
    tokens: int = 1,
    capacity: int = 32768,
    retained: int = 0,
    types: dict[str, str] | None = None,
    address: int = 256,
    places: dict[str, int] | None = None,
    segments: int = 1,
    slot: int | None = None,
    **options: int,
) -> GpuPlan:
    """The plan of the writer of a group, or of another slot, at made-up addresses."""
    full = {**attributes, "group_slot": attributes["group_size"] - 1 if slot is None else slot}
    chosen = {"T": "float16", "exact": "float16", "retained": "float16"} | (types or {})
    kinds = {state.name: state.dtype for state in schemas.STATES}
    fixed = {"int8": "int8", "fp16": "float16", "int32": "int32", "fp32": "float32"}
    heads, kv_heads, size = (full[n] for n in ("num_heads", "kv_num_heads", "head_size"))
    joint = full["group_size"] * kv_heads // full["code_heads"] * size
    tensors = {}
    for name in (*schemas.input_names(full), "attention"):
        kind, _, part = name.partition("_")
        count = sum(full[f"{kind}_bits"][1::2]) if part in ("decoder", "encoder", "step") else 0
        shapes = {
            "decoder": (kv_heads, count, size),
            "encoder": (full["code_heads"], count, joint),
            "step": (full["code_heads"], count),
        }
        if kind == "past" and part != "lengths":
            group = chosen.get(part.partition("_")[0], chosen["exact"])
            shape = schemas.state_shape(part, full, batch, capacity, retained, segments)
            place = (places or {}).get(name, address)
            tensors[name] = PlacedTensor(fixed.get(kinds[part], group), shape, place)
        elif name in ("past_lengths", "total_lengths"):
            tensors[name] = PlacedTensor("int32", (batch,), address)
        elif name == "rope_frequencies":
            tensors[name] = PlacedTensor("float32", (size // 2,), address)
        elif part == "delta_basis":
            tensors[name] = PlacedTensor("float16", (kv_heads, full["delta_rank"], size), address)
        elif part in shapes:
            dtype = "float32" if part == "step" else "float16"
            tensors[name] = PlacedTensor(dtype, shapes[part], address)
        else:
            width = heads * size if name in ("query", "attention") else kv_heads * size
            tensors[name] = PlacedTensor(chosen["T"], (batch, tokens, width), address)
    return gpu_plan(full, tensors, table=256, scratch=256, options=options)


def kernels(plan: GpuPlan) -> list[str]:
    """Names of all kernels in the order of their launches."""
    return [launch.key.partition("|")[0] for launch in plan.launches]


def arguments(plan: GpuPlan, kernel: str) -> list[dict[str, Any]]:
    """The arguments of all launches of a kernel by name."""
    names = [argument.name for argument in SIGNATURES[kernel].arguments]
    return [
        dict(zip(names, (value for _, value in launch.arguments), strict=True))
        for launch in plan.launches
        if launch.key.startswith(f"{kernel}|")
    ]
