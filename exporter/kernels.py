"""The compiled GPU kernels of an exported folder: exactly those that its nodes launch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from minicache.exporter import schemas
from minicache.plugins.gpu_plan import PlacedTensor, gpu_plan
from minicache.runtime.cache import resolve_shape, round_capacity
from minicache.runtime.errors import MissingDependencyError
from minicache.runtime.manifest import KERNELS_NAME, Manifest, StateTensor
from minicache.runtime.progress import progress

# New tokens of a call, so that every choice of the plan that depends on them is met: programs of 16
# rows serve up to 16 rows (new token, query head), others more.
NEW_TOKENS = (*range(1, 18), 512)
_ALIGNED = 4096  # an address like those that an allocator gives
_TYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def check_can_compile() -> None:
    """Refuses where kernels cannot be compiled; worth asking before any long work.

    Raises:
        MissingDependencyError: without the compiler.
    """
    from minicache.plugins.triton.compile import require_triton

    try:
        require_triton()
    except MissingDependencyError as error:
        raise MissingDependencyError(
            f'{error} (the extra "minicache-onnx[gpu-build]"), or add --no-kernels and compile '
            "them elsewhere: minicache kernels FOLDER"
        ) from error


def kernel_keys(folder: Path, manifest: Manifest) -> list[str]:
    """The kernel variants that a folder's graph launches (``plugins/triton/variant.py``).

    Raises:
        UnsupportedModelError: the kernels do not cover a node.
    """
    graph = onnx.load(folder / manifest.model, load_external_data=False).graph
    tables = {table.name: table for table in graph.initializer}
    found: dict[str, None] = {}
    seen = set()
    states = {state.past: state for state in manifest.state}
    for node in graph.node:
        if node.op_type != schemas.OP_TYPE:
            continue
        given = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        full = schemas.attributes_with_defaults({k: _plain(v) for k, v in given.items()})
        if len(node.output) > 1:  # handed on to the next node of the group, on TensorRT
            states |= zip(
                node.output[1:], [states[n] for n in node.input if n in states], strict=True
            )
        kind = repr((full, [tables[n].data_type for n in node.input if n in tables]))
        if kind in seen:
            continue
        seen.add(kind)
        for tensors in _calls(full, node, tables, states, manifest):
            plan = gpu_plan(full, tensors, table=_ALIGNED, scratch=_ALIGNED)
            found |= dict.fromkeys(launch.key for launch in plan.launches)
    return list(found)


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _calls(
    full: Mapping[str, Any],
    node: onnx.NodeProto,
    tables: Mapping[str, onnx.TensorProto],
    states: Mapping[str, StateTensor],
    manifest: Manifest,
) -> Iterator[dict[str, PlacedTensor]]:
    """The tensors of a node in calls of one row and some new tokens."""
    capacity = round_capacity(manifest.max_sequence_length)
    model = _TYPES[manifest.dtype]
    names = schemas.input_names(full)
    heads, kv_heads, size = full["num_heads"], full["kv_num_heads"], full["head_size"]
    for tokens in NEW_TOKENS:
        shapes = {
            "query": (1, tokens, heads * size),
            "attention_bias": (1, heads, tokens, capacity),
            "head_sink": (heads,),
        }
        placed = {}
        for name, value in zip(names, node.input, strict=True):
            if value in states:
                shape = resolve_shape(states[value], manifest, 1, capacity)
                placed[name] = PlacedTensor(states[value].dtype, shape, _ALIGNED)
            elif value in tables:
                kind = onnx.helper.tensor_dtype_to_np_dtype(tables[value].data_type).name
                placed[name] = PlacedTensor(kind, tuple(tables[value].dims), _ALIGNED)
            elif name.endswith("_lengths"):
                placed[name] = PlacedTensor("int32", (1,), _ALIGNED)
            else:
                shape = shapes.get(name, (1, tokens, kv_heads * size))
                placed[name] = PlacedTensor(model, shape, _ALIGNED)
        placed["attention"] = placed["query"]
        yield placed


def write_kernels(
    folder: Path,
    manifest: Manifest,
    *,
    architectures: Sequence[int] | None = None,
    quiet: bool = False,
) -> Path:
    """Compiles the kernels of an exported folder into it; minutes, unless Triton kept them.

    Args:
        folder: exported for a target that has kernel packs.
        manifest: of the folder.
        architectures: compute capabilities, 10 * major + minor; None: all that are supported.
        quiet: no progress on stderr.

    Returns:
        the folder of the pack.

    Raises:
        MissingDependencyError: without the compiler.
        BuildError: a kernel does not compile.
        OutputError: the pack cannot be written.
    """
    check_can_compile()
    from minicache.plugins.triton.build import ARCHITECTURES, build_facts, build_kernels
    from minicache.plugins.triton.kernel_pack import write_pack
    from minicache.plugins.triton.variant import parse_key

    wanted = tuple(architectures or ARCHITECTURES)
    variants = [parse_key(key) for key in kernel_keys(folder, manifest)]
    total = len(variants) * len({*wanted, 80})  # sm_80 gives the PTX as well
    with progress("compiling GPU kernels", total=total, quiet=quiet) as step:
        kernels = build_kernels(
            variants, wanted, jobs=os.cpu_count() or 1, report=lambda _: step.advance()
        )
    write_pack(folder / KERNELS_NAME, kernels, build_facts(wanted))
    return folder / KERNELS_NAME
