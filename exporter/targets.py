"""Where an exported model can run: one frozen row per target; adding a target is adding a row."""

from __future__ import annotations

from dataclasses import dataclass

from minicache.runtime.errors import PlanError


@dataclass(frozen=True)
class Target:
    """One deployment target.

    Attributes:
        name: what ``--target`` takes.
        description: one line for the help text.
        dtypes: model types that the target's kernels cover.
        code_layout: how codes lie in memory there (docs/operator.md).
    """

    name: str
    description: str
    dtypes: tuple[str, ...]
    code_layout: str


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        # On CPUs tiles beat rows: 16 tokens' scores are one vector (slerp decode 1.2-1.4 times).
        Target("ort-cpu", "ONNX Runtime, CPU execution provider", ("fp32", "fp16"), "tile"),
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
