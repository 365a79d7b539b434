"""Asks the native library which kernels a node launches on a GPU (``plugins/gpu/plan_text.h``).

The plan is a pure function of attributes, types and shapes, so this works without a GPU: the
exporter learns which kernels a model needs, and tests run the launches in an interpreter.
"""

from __future__ import annotations

import ctypes
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minicache.plugins.library import ort_library_path
from minicache.runtime.errors import MissingDependencyError, UnsupportedModelError


@dataclass(frozen=True)
class PlacedTensor:
    """An input or output of a node: NumPy's name of its type, its shape, and where it lies."""

    dtype: str
    shape: tuple[int, ...]
    address: int = 0


@dataclass(frozen=True)
class Launch:
    """One launch of one kernel.

    Attributes:
        key: of its variant (``triton/variant.py``).
        grid: programs along three axes.
        arguments: kind (``triton/signatures.py``) and value, in order.
    """

    key: str
    grid: tuple[int, int, int]
    arguments: tuple[tuple[str, int | float], ...]


@dataclass(frozen=True)
class GpuPlan:
    """What one call of a node does.

    Attributes:
        table: int32 numbers that have to lie in memory for the kernels.
        scratch: bytes of scratch that they need.
        launches: in order.
    """

    table: list[int] = field(default_factory=list)
    scratch: int = 0
    launches: list[Launch] = field(default_factory=list)


def gpu_plan(
    attributes: Mapping[str, Any],
    tensors: Mapping[str, PlacedTensor],
    *,
    table: int = 0,
    scratch: int = 0,
    options: Mapping[str, int] | None = None,
) -> GpuPlan:
    """Plans one call of a node.

    Args:
        attributes: of the node, complete.
        tensors: the inputs by their names in ``exporter/schemas.py``, and ``attention``.
        table: address of the node's table.
        scratch: address of the scratch.
        options: of ``GpuOptions`` in plugins/gpu/node.h.

    Raises:
        UnsupportedModelError: the kernels do not cover such a node.
        MissingDependencyError: the library is missing, or older than this.
    """
    lines = [f"table {table}", f"scratch {scratch}"]
    lines += [f"option {name} {value}" for name, value in (options or {}).items()]
    for name, value in attributes.items():
        given = value if isinstance(value, list | tuple) else [value]
        if given:  # an empty list is the default of every list
            lines.append(f"attribute {name} {','.join(map(str, given))}")
    for name, tensor in tensors.items():
        shape = ",".join(map(str, tensor.shape))
        lines.append(f"tensor {name} {tensor.dtype} {shape} {tensor.address}")
    answer = json.loads(_library(ort_library_path()).minicache_gpu_plan("\n".join(lines).encode()))
    if "error" in answer:
        raise UnsupportedModelError(f"the CUDA kernels cannot run this node: {answer['error']}")
    launches = [
        Launch(each["key"], tuple(each["grid"]), tuple(map(tuple, each["arguments"])))
        for each in answer["launches"]
    ]
    return GpuPlan(answer["table"], answer["scratch"], launches)


@functools.cache
def _library(path: Path) -> Any:
    library = ctypes.CDLL(str(path))
    try:
        library.minicache_gpu_plan.restype = ctypes.c_char_p
    except AttributeError as error:
        raise MissingDependencyError(
            f"{str(path)!r} knows no GPU kernels ({error}); reinstall minicache-onnx"
        ) from error
    return library
