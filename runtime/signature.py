"""Whether a graph or an engine and a manifest belong together: names, types and shapes.

A graph is anything that lists inputs and outputs as ``onnxruntime.InferenceSession`` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minicache.runtime.cache import Cache
from minicache.runtime.errors import PackageError
from minicache.runtime.manifest import StateTensor

CONTROL_INPUTS = ("input_ids", "past_lengths", "total_lengths", "logit_positions")
_ORT_TYPES = {"float32": "float", "float64": "double"}  # by NumPy's names, where they differ
_LOGITS = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


@dataclass(frozen=True)
class GraphTensor:
    """An input or output, where ONNX Runtime is not there to describe it.

    Attributes:
        name: in the graph.
        type: as ONNX Runtime writes it, e.g. ``tensor(float16)``.
        shape: dimensions; what is not an integer is free.
    """

    name: str
    type: str
    shape: tuple[int | None, ...]


def logits_type(graph: Any, path: Path) -> np.dtype[Any]:
    """NumPy's type of a graph's logits.

    Raises:
        PackageError: another one than the runtime reads.
    """
    kind = {output.name: output.type for output in graph.get_outputs()}["logits"]
    if kind not in _LOGITS:
        raise PackageError(
            f"the logits of {str(path)!r} are {kind}, not fp32 or fp16; export again"
        )
    return np.dtype(_LOGITS[kind])


def check_names(graph: Any, cache: Cache, path: Path) -> None:
    """Checks that a graph has the inputs and outputs that its manifest declares.

    Raises:
        PackageError: one is missing, or the graph wants one that the manifest does not know.
    """
    inputs = {item.name for item in graph.get_inputs()}
    outputs = {item.name for item in graph.get_outputs()}
    expected = [*CONTROL_INPUTS, *cache.states]
    presents = [state.present for state in cache.states.values()]
    missing = [name for name in expected if name not in inputs]
    missing += [name for name in ("logits", *presents) if name not in outputs]
    unknown = sorted(inputs - set(expected))
    if missing or unknown:
        found = f"lacks {missing[0]!r}" if missing else f"also wants {unknown[0]!r}"
        raise PackageError(
            f"{str(path)!r} {found}: it and its manifest do not belong together; export again"
        )
    for item in graph.get_inputs():
        if item.name in cache.states:
            _check_state(item, cache.states[item.name], cache.arrays[item.name].shape, path)


def _check_state(item: Any, state: StateTensor, shape: tuple[int, ...], path: Path) -> None:
    kind = _ORT_TYPES.get(state.dtype, state.dtype)
    fits = len(item.shape) == len(shape) and all(
        size == wanted for size, wanted in zip(shape, item.shape, strict=True)
        if isinstance(wanted, int)
    )  # fmt: skip
    if item.type != f"tensor({kind})" or not fits:
        raise PackageError(
            f"{str(path)!r} wants {item.name!r} as {item.type} {item.shape}, its manifest says "
            f"{state.dtype} {list(state.shape)}: they do not belong together; export again"
        )
