"""What a user may ask of an export, as one value that the command line or Python code fills."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from minicache.exporter.delta_options import check_deltas, merge_parameter
from minicache.exporter.mode_options import (
    CALIBRATION_OPTIONS,
    CODED_OPTIONS,
    PAPER_OPTIONS,
    PLANNED_OPTIONS,
    SUBSPACE_OPTIONS,
)
from minicache.exporter.paper_plan import Layer, exact_plan, paper_plan
from minicache.exporter.plan import DEFAULT_SINKS, DEFAULT_SLACK, DEFAULT_WINDOW, Group, Plan
from minicache.exporter.planner.goal import DEFAULT_MAX_GROUP_SIZE, Goal
from minicache.exporter.retention import Retention
from minicache.exporter.schemas import MAGNITUDES
from minicache.runtime.errors import PlanError
from minicache.runtime.eviction.parse import parse_policy

MODES = ("subspace", "exact", "paper")
SLERP_BITS = (16, 8, 4)


@dataclass(frozen=True)
class ExportOptions:
    """Options of ``export_model``; the defaults find the ratio that costs at most 1 % perplexity.

    Attributes:
        mode: ``subspace`` (calibrated joint codes), ``exact`` (in-place buffers, same results) or
            ``paper`` (MiniCache's merge).
        target: a name of ``targets.TARGETS``.
        max_sequence_length: largest capacity C; None takes the model's own limit.
        ratio: subspace: at least so many times smaller than fp16, coded part of the layers of full
            attention.
        kv_bytes_per_token: subspace: at most so many coded bytes per token, all coded layers.
        max_kl: subspace: at most so much KL to the original, nats per token.
        max_group_size: subspace: layers of the largest group.
        code_heads: subspace: ``apart``, ``joint`` or ``any``: whether kv heads share codes.
        plan: subspace: a plan to take instead of searching one.
        plan_minutes: subspace: time after which no further plan is measured.
        calibration: subspace, align, delta_rank: text to fit to; None takes the text that ships.
        calibration_tokens: subspace, align, delta_rank: tokens of it to read at most.
        cache: folder that keeps calibrations and measurements; None: the user's cache folder.
        start_layer: paper: first merged layer S; None means half depth.
        group_size: paper: layers per group G.
        slerp_t: paper: SLERP parameter t; None means 0.6, and 0.5 with deltas.
        magnitude: paper: ``own``, ``upper`` or ``blended``.
        retention: paper: ``none``, ``threshold:COS``, ``minmax:GAMMA`` or ``budget:FRACTION``.
        retention_capacity: side buffer as a fraction of C; None means 0.05.
        retention_scope: ``mean`` or ``any-head``.
        code_bits: paper: 16, 8 or 4 bits per element of the shared direction.
        align: paper: turn the layers of a group to each other first, by a calibration.
        delta_bits: paper: 4 or 2 bits per element of what the direction of a pair lacks; 0: none.
        delta_rank: paper: instead of bits, fp16 coefficients in a calibrated basis; 0: none.
        evict: which tokens go: ``streaming:SINKS+WINDOW``, ``snapkv:BUDGET`` or ``h2o:BUDGET``;
            None keeps all of them.
        window: recent tokens that stay exact.
        sinks: first tokens that stay exact.
        rewind_slack: tokens that a session can take back exactly.
        verify_text: held-out text; None takes the text that ships with the package.
        verify_documents: documents to measure the loss on; 0 leaves the measurement out.
        verify_context: tokens per document.
        overwrite: replace an earlier export at the output.
        no_kernels: leave the compiled kernels of a GPU target out.
        quiet: no progress bars.
    """

    mode: str = "subspace"
    target: str = "ort-cpu"
    max_sequence_length: int | None = None
    ratio: float | None = None
    kv_bytes_per_token: int | None = None
    max_kl: float | None = None
    max_group_size: int = DEFAULT_MAX_GROUP_SIZE
    code_heads: str = "apart"
    plan: Path | None = None
    plan_minutes: float = 15.0
    calibration: Path | None = None
    calibration_tokens: int = 32768
    cache: Path | None = None
    start_layer: int | None = None
    group_size: int = 2
    slerp_t: float | None = None
    magnitude: str = "own"
    retention: str = "minmax:0.05"
    retention_capacity: float | None = None
    retention_scope: str = "mean"
    code_bits: int = 16
    align: bool = False
    delta_bits: int = 0
    delta_rank: int = 0
    evict: str | None = None
    window: int = DEFAULT_WINDOW
    sinks: int = DEFAULT_SINKS
    rewind_slack: int = DEFAULT_SLACK
    verify_text: Path | None = None
    verify_documents: int = 4
    verify_context: int = 1024
    overwrite: bool = False
    no_kernels: bool = False
    quiet: bool = False

    @property
    def calibrates(self) -> bool:
        """Whether the export fits anything to a text."""
        return self.mode == "subspace" or self.align or self.delta_rank > 0

    def check(self) -> Retention:
        """Checks what does not depend on the model; returns ``retention``, parsed.

        Raises:
            PlanError: a value out of range, or an option that ``mode`` would ignore.
        """
        if self.mode not in MODES:
            raise PlanError(f"--mode {self.mode!r} is not one of {', '.join(MODES)}")
        self._check_mode_options()
        if self.evict is not None:
            parse_policy(self.evict)
        self.goal()
        if self.plan is not None:
            for name in PLANNED_OPTIONS:
                if getattr(self, name) != type(self).__dataclass_fields__[name].default:
                    raise PlanError(
                        f"--{name.replace('_', '-')} has no effect with --plan, which decides it "
                        "already; give one of them"
                    )
        if self.calibration_tokens < 1:
            raise PlanError(f"--calibration-tokens is {self.calibration_tokens}; give at least 1")
        if self.max_sequence_length is not None and self.max_sequence_length < 1:
            raise PlanError(
                f"--max-sequence-length is {self.max_sequence_length}; give at least 1, or leave "
                "it out for the model's own limit"
            )
        if self.slerp_t is not None and not 0.0 <= self.slerp_t <= 1.0:
            raise PlanError(f"--slerp-t {self.slerp_t:g} is not within 0..1")
        if self.magnitude not in MAGNITUDES:
            raise PlanError(f"--magnitude {self.magnitude!r} is not one of {', '.join(MAGNITUDES)}")
        if self.code_bits not in SLERP_BITS:
            raise PlanError(f"--code-bits {self.code_bits} is not one of 16, 8, 4")
        check_deltas(self.delta_bits, self.delta_rank, self.slerp_t, self.group_size)
        if self.verify_documents < 0:
            raise PlanError(f"--verify-documents is {self.verify_documents}; give 0 (none) or more")
        if self.verify_context < 2:
            raise PlanError(f"--verify-context is {self.verify_context}; give at least 2 tokens")
        return Retention.parse(self.retention, self.retention_capacity, self.retention_scope)

    def _check_mode_options(self) -> None:
        owners = dict.fromkeys(PAPER_OPTIONS, "paper")
        owners |= dict.fromkeys(SUBSPACE_OPTIONS, "subspace")
        owners |= dict.fromkeys(CODED_OPTIONS, "subspace or paper")
        if not self.calibrates:
            owner = "subspace"
            if self.mode != "exact":
                owner += ", --align or --delta-rank"
            owners |= dict.fromkeys(CALIBRATION_OPTIONS, owner)
        for name, owner in owners.items():
            value, default = getattr(self, name), type(self).__dataclass_fields__[name].default
            if self.mode not in owner and value != default:
                given = f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
                raise PlanError(
                    f"{given} has no effect with --mode {self.mode}; add --mode {owner} or leave "
                    "it out"
                )

    def goal(self) -> Goal:
        """What a plan of the subspace mode must reach.

        Raises:
            PlanError: values out of range or in contradiction.
        """
        return Goal(
            ratio=self.ratio,
            bytes_per_token=self.kv_bytes_per_token,
            max_kl=self.max_kl,
            max_group_size=self.max_group_size,
            code_heads=self.code_heads,
            minutes=self.plan_minutes,
        )

    def make_plan(self, layers: list[Layer], max_sequence_length: int) -> Plan:
        """Makes the plan of ``mode`` for these layers; ``subspace`` starts from the exact one.

        Raises:
            PlanError: options that contradict each other or the model.
        """
        retention = self.check()
        if self.mode == "subspace" and all(layer.local_window for layer in layers):
            raise PlanError(
                f"all {len(layers)} layers attend to a sliding window, which bounds their cache "
                "already: there is nothing to code; use --mode exact"
            )
        if self.evict is not None and all(layer.local_window for layer in layers):
            raise PlanError(
                f"all {len(layers)} layers attend to a sliding window, which evicts already; leave "
                "--evict out"
            )
        plan = self._make_plan(layers, max_sequence_length, retention)
        decided = self.plan is not None  # by that one, its sinks and window too
        return plan if decided else dataclasses.replace(plan, evict=self.evict or "")

    def _make_plan(
        self, layers: list[Layer], max_sequence_length: int, retention: Retention
    ) -> Plan:
        if self.mode != "paper":
            plan = exact_plan(layers, max_sequence_length, self.rewind_slack)
            if self.mode == "exact":
                return plan
            return dataclasses.replace(plan, window=self.window, sinks=self.sinks)
        group = Group(
            layers=(0, 1),
            mode="slerp",
            code_bits=self.code_bits,
            slerp_t=merge_parameter(self.slerp_t, self.delta_bits + self.delta_rank > 0),
            magnitude=self.magnitude,
            retention=retention,
            align=self.align,
            delta_bits=self.delta_bits,
            delta_rank=self.delta_rank,
        )
        return paper_plan(
            layers,
            group,
            group_size=self.group_size,
            start_layer=self.start_layer,
            max_sequence_length=max_sequence_length,
            window=self.window,
            sinks=self.sinks,
            slack=self.rewind_slack,
        )
