"""What an export demands of a model before any long work; ``inspect`` asks the same."""

from __future__ import annotations

from minicache.exporter.facts import ModelFacts
from minicache.exporter.normalise import NormalisedModel
from minicache.exporter.options import ExportOptions
from minicache.exporter.passes.lower_tensorrt import check_parsable
from minicache.exporter.targets import Target
from minicache.runtime.errors import PlanError, UnsupportedModelError

DEFAULT_MAX_SEQUENCE_LENGTH = 4096


def check_target(normalised: NormalisedModel, target: Target) -> None:
    """Whether a target can run the model.

    Raises:
        UnsupportedModelError: its parser does not read the graph, or its kernels not the type.
    """
    if target.lowered:
        check_parsable(normalised.model)
    if normalised.dtype not in target.dtypes:
        raise UnsupportedModelError(
            f"the model is {normalised.dtype}, {target.name} runs {', '.join(target.dtypes)}; "
            f"export it in one of these{_reason(normalised.dtype)}"
        )


def _reason(dtype: str) -> str:
    # ONNX Runtime 1.32 has neither MatMul nor Add of bf16 on CPUs.
    bf16 = " (ONNX Runtime cannot run bf16 on CPUs, where exports are proved)"
    return bf16 if dtype == "bf16" else ""


def check_delta_target(options: ExportOptions, target: Target) -> None:
    """Whether a target can read the deltas that are asked for.

    Raises:
        PlanError: its kernels cannot.
    """
    if options.delta_rank and not target.delta_bases:
        raise PlanError(
            f"--delta-rank {options.delta_rank}: the kernels of --target {target.name} read deltas "
            "of bits only; use --delta-bits, or --target ort-cpu"
        )


def choose_capacity(options: ExportOptions, facts: ModelFacts) -> int:
    """The largest capacity C of the export.

    Raises:
        PlanError: more is wanted than the model has positions.
    """
    own = facts.max_positions
    wanted = options.max_sequence_length or own or DEFAULT_MAX_SEQUENCE_LENGTH
    if own and wanted > own:
        raise PlanError(
            f"--max-sequence-length {wanted} exceeds the model's {own} positions; "
            f"choose at most {own}"
        )
    return wanted
