"""Where an exported model can run: one frozen row per target; adding a target is adding a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from minicache.exporter.calibration.allocation import MULTIPLES
from minicache.runtime.errors import PlanError


@dataclass(frozen=True)
class Target:
    """One deployment target.

    Attributes:
        name: what ``--target`` takes.
        description: one line for the help text.
        dtypes: model types that the target's kernels cover.
        code_layout: how codes lie in memory there (docs/operator.md).
        multiples: by width, what the components of a code's segment are a multiple of.
        kernel_pack: whether compiled kernels go into the folder.
        lowered: whether the graph is written for TensorRT's parser, for an engine to be built.
        half_tables: whether tables of halves are stored as fp16 in models of any type.
        delta_bases: whether the kernels read deltas of pairs by coefficients in a basis.
    """

    name: str
    description: str
    dtypes: tuple[str, ...]
    code_layout: str
    multiples: Mapping[int, int] = field(default_factory=lambda: MULTIPLES)
    kernel_pack: bool = False
    lowered: bool = False
    half_tables: bool = False
    delta_bases: bool = False


_GPU_MULTIPLES = {8: 16, 4: 32, 2: 64}  # 16 bytes: what a thread loads at once

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        # On CPUs tiles beat rows: 16 tokens' scores are one vector (slerp decode 1.2-1.4 times).
        Target(
            "ort-cpu",
            "ONNX Runtime, CPU execution provider",
            ("fp32", "fp16"),
            "tile",
            half_tables=True,
            delta_bases=True,
        ),
        Target(
            "ort-cuda",
            "ONNX Runtime, CUDA execution provider",
            ("fp16",),  # the kernels cover bf16, but its exports cannot be proved: see pipeline
            "row",
            multiples=_GPU_MULTIPLES,
            kernel_pack=True,
        ),
        Target(
            "tensorrt",
            "TensorRT and TensorRT-RTX; build-engine makes the engine",
            ("fp16",),  # likewise
            "row",
            multiples=_GPU_MULTIPLES,
            kernel_pack=True,
            lowered=True,
        ),
    )
}


def find_target(name: str) -> Target:
    """Returns the row of ``name``.

    Raises:
        PlanError: no such target; the message lists those that exist.
    """
    if name not in TARGETS:
        raise PlanError(f"target {name!r} is not one of {', '.join(TARGETS)}")
    return TARGETS[name]
