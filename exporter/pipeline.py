"""The export, step by step; each step is a module of its own.

1. ``io.load_model``: weights stay on disk, memory-mapped.
2. ``normalise``: every attention site becomes ``MiniCacheAttention`` in exact mode, the cache an
   in-place buffer, RoPE explicit, dead mask code gone.
3. ``parity``: the exact graph must give the original's logits. It comes before the plan, so that a
   difference found later is the codec's and not the rewrite's.
4. ``plan_subspace`` or ``paper_plan`` (and ``plan_aligned``, ``plan_delta``),
   ``passes.apply_plan``: which layers share a code, and how.
5. ``verify``: what the plan costs on held-out text, against the original and against rivals.
6. ``engine.prepare``: for TensorRT the graph is lowered now; before, it ran in ONNX Runtime.
7. ``package``: all of it happened in a staging folder, which now takes the output's name.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minicache.exporter import io, package
from minicache.exporter.calibration.group_tables import GroupTables
from minicache.exporter.delta_options import check_head_size
from minicache.exporter.engine.prepare import prepare_engine
from minicache.exporter.kernels import check_can_compile, write_kernels
from minicache.exporter.normalise import NormalisedModel, normalise
from minicache.exporter.options import ExportOptions
from minicache.exporter.paper_plan import exact_plan
from minicache.exporter.parity import check_parity
from minicache.exporter.parity_report import ParityReport
from minicache.exporter.passes.apply_plan import ApplyPlanPass
from minicache.exporter.plan import Plan
from minicache.exporter.plan_aligned import align_plan
from minicache.exporter.plan_delta import fit_deltas
from minicache.exporter.plan_file import FILE_NAME as PLAN_NAME
from minicache.exporter.plan_file import read_plan, write_plan
from minicache.exporter.plan_subspace import plan_subspace
from minicache.exporter.preflight import (
    check_delta_target,
    check_target,
    choose_capacity,
)
from minicache.exporter.reporting import report
from minicache.exporter.schemas import VERSION
from minicache.exporter.targets import Target, find_target
from minicache.exporter.texts import read_texts
from minicache.exporter.verify import Verification, measure_rivals
from minicache.runtime.evaluate import EvaluationResult, evaluate_folder
from minicache.runtime.eviction.entry import EvictionEntry
from minicache.runtime.eviction.parse import parse_policy
from minicache.runtime.manifest import Manifest
from minicache.runtime.progress import progress

# Whatever the target: CPU kernels read its layout, and are on every machine.
PROVED_ON = "ort-cpu"


@dataclass(frozen=True)
class ExportResult:
    """What ``export_model`` made.

    Attributes:
        folder: the output folder.
        manifest: its ``minicache.json``.
        parity: the proof that the exact graph equals the original.
        evaluation: the measured loss; None when nothing is lossy or it was left out.
        report: the content of ``report.json``.
    """

    folder: Path
    manifest: Manifest
    parity: ParityReport
    evaluation: EvaluationResult | None
    report: dict[str, Any]


def export_model(model: Path, output: Path, options: ExportOptions | None = None) -> ExportResult:
    """Rewrites ``model`` and writes a folder that ``minicache.runtime.Session`` opens.

    Args:
        model: an ONNX file, or a folder that holds ``model.onnx``; never modified.
        output: the folder to make.
        options: None takes the defaults: codes that cost at most 1 % perplexity.

    Raises:
        MiniCacheError: one of its kinds, each with a sentence; nothing is left at ``output``.
    """
    options = options or ExportOptions()
    started = time.monotonic()
    target = find_target(options.target)
    options.check()
    check_delta_target(options, target)
    compiles = target.kernel_pack and not options.no_kernels
    if compiles:
        check_can_compile()
    output = Path(output)
    model = io.find_model_file(model)
    inputs = [model, options.verify_text, options.calibration]
    if options.plan is not None and options.plan.name != PLAN_NAME:
        inputs.append(options.plan)  # an export's own plan.json is replaced by what came of it
    package.check_output(output, overwrite=options.overwrite, inputs=[p for p in inputs if p])
    with progress("reading the graph", total=1, quiet=options.quiet) as step:
        source, facts = io.load_model(model), io.read_facts(model)
        normalised = normalise(source, facts)
        step.advance()
    check_target(normalised, target)
    for layer in normalised.layers:
        check_head_size(options.delta_bits, options.delta_rank, layer.head_dim)
    capacity = choose_capacity(options, facts)
    plan = options.make_plan(list(normalised.layers), capacity)
    if options.plan is not None:
        read_plan(options.plan, capacity)  # a mistake in it is told before the long work
    texts = read_texts(model.parent, options, capacity, normalised.vocab_size, plan.lossy)

    needed = int(1.05 * io.weight_bytes(source)) + (16 << 20)
    with package.staging_folder(output, overwrite=options.overwrite, bytes_needed=needed) as folder:
        # In exact form first, for the parity proof.
        exact = exact_plan(normalised.layers, capacity, options.rewind_slack)
        manifest = _write(normalised, exact, target.code_layout, facts, folder, options.quiet)
        package.copy_side_files(model.parent, folder)
        with progress("proving parity", total=None, quiet=options.quiet):
            parity = check_parity(model, folder, normalised.dtype)
        choice = aligned = deltas = verification = None
        if texts is not None:
            tables: Mapping[int, GroupTables] = {}
            if options.mode == "subspace":
                choice = plan_subspace(folder, options, texts.split)
                plan, tables = choice.plan, choice.codecs
                plan = dataclasses.replace(plan, evict=options.evict or plan.evict)
            elif options.align:
                aligned = align_plan(folder, options, texts.split, plan)
                tables = aligned.alignments
            if options.delta_rank:
                deltas = fit_deltas(folder, options, texts.split, plan, tables)
                tables = deltas.tables
            # The exact form is needed up to here; now the plan's takes its place.
            rivals = measure_rivals(folder, texts, quiet=options.quiet)
            manifest = _rewrite(plan, target, manifest, folder, tables)
            write_plan(plan, folder / PLAN_NAME)
            if texts.verification:
                evaluation = evaluate_folder(
                    folder,
                    original=model,
                    documents=texts.verification,
                    context=texts.context,
                    quiet=options.quiet,
                )
                verification = Verification(evaluation, rivals)
        manifest = dataclasses.replace(manifest, target=target.name)
        manifest.save(folder)
        notes = list(normalised.notes)
        if target.name != PROVED_ON:
            notes.append(f"parity and quality were measured by the kernels of {PROVED_ON}")
        if target.lowered:
            prepare_engine(folder, manifest)
            notes.append(f"now build the engine: minicache build-engine {output.name}")
        if compiles:
            write_kernels(folder, manifest, quiet=options.quiet)
        content = report.build_report(
            model=model,
            output=output,
            options=options,
            manifest=manifest,
            notes=notes,
            parity=parity,
            verification=verification,
            choice=choice,
            aligned=aligned,
            deltas=deltas,
            seconds=time.monotonic() - started,
        )
        report.write_report(content, folder)
    measured = verification.evaluation if verification else None
    return ExportResult(output, manifest, parity, measured, content)


def _write(
    normalised: NormalisedModel,
    plan: Plan,
    code_layout: str,
    facts: io.ModelFacts,
    folder: Path,
    quiet: bool,
) -> Manifest:
    """Saves the exact graph with its weights; returns its manifest."""
    applied = ApplyPlanPass(plan, code_layout)
    applied(normalised.model)
    with progress("writing the weights", total=None, quiet=quiet):
        io.save_model(normalised.model, folder)
    first = normalised.layers[0]
    manifest = Manifest(
        model=io.MODEL_NAME,
        target=PROVED_ON,
        mode=plan.mode,
        dtype=normalised.dtype,
        num_layers=len(normalised.layers),
        num_heads=first.num_heads,
        num_kv_heads=first.num_kv_heads,
        head_dim=first.head_dim,
        vocab_size=normalised.vocab_size,
        max_sequence_length=plan.max_sequence_length,
        rewind_slack=plan.slack,
        window=plan.window,
        op_version=VERSION,
        eos_token_ids=facts.eos_token_ids,
        bos_token_id=facts.bos_token_id,
        state=tuple(applied.state),
        plan=plan.to_dict(),
        fixed_batch=normalised.fixed_batch,
        producer={
            "name": "minicache-onnx",
            "version": importlib.metadata.version("minicache-onnx"),
        },
    )
    manifest.save(folder)
    return manifest


def _rewrite(
    plan: Plan, target: Target, exact: Manifest, folder: Path, tables: Mapping[int, GroupTables]
) -> Manifest:
    """Applies a lossy plan to the graph in ``folder``; its weights file stays as it is."""
    graph = io.load_model(folder / io.MODEL_NAME)
    applied = ApplyPlanPass(plan, target.code_layout, tables, target.half_tables)
    applied(graph)
    io.save_graph(graph, folder)
    manifest = dataclasses.replace(
        exact,
        mode=plan.mode,
        rewind_slack=plan.slack,
        window=plan.window,
        state=tuple(applied.state),
        retained_fractions=applied.retained_fractions,
        retained_extra=applied.retained_extra,
        plan=plan.to_dict(),
    )
    if plan.evict:
        tiled = target.code_layout == "tile"
        entry = EvictionEntry(parse_policy(plan.evict), tiled, applied.segment_lengths)
        manifest = dataclasses.replace(manifest, eviction=entry.to_dict())
    manifest.save(folder)
    return manifest
