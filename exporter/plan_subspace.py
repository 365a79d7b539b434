"""The ``subspace`` stage of an export: calibrate, search a plan, make its codecs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minicache.exporter.baselines.exact_cache import coded_layers
from minicache.exporter.baselines.subspace_simulation import bytes_per_token
from minicache.exporter.calibration.allocation import MULTIPLES
from minicache.exporter.calibration.calibrate import check_length
from minicache.exporter.calibration.codec import SubspaceCodec
from minicache.exporter.calibration.sample import choose_documents
from minicache.exporter.calibration.store import CalibrationStore, default_store, fingerprint
from minicache.exporter.options import ExportOptions
from minicache.exporter.plan import Group, Plan
from minicache.exporter.plan_file import read_plan
from minicache.exporter.planner.candidate import make_codecs
from minicache.exporter.planner.frontier import FrontierPoint
from minicache.exporter.planner.journal import Journal
from minicache.exporter.planner.loss_meter import LossMeter
from minicache.exporter.planner.search import Search
from minicache.exporter.profiling.depth_similarity import depth_similarity
from minicache.exporter.stored_calibration import SEGMENT_LENGTH, stored_calibration
from minicache.exporter.targets import find_target
from minicache.runtime.corpus import read_documents
from minicache.runtime.errors import PlanError
from minicache.runtime.evaluate import default_prefill
from minicache.runtime.manifest import Manifest
from minicache.runtime.text_split import PIECE, SCORED, TextSplit, split_documents
from minicache.runtime.tokenizer import TextTokenizer

JOURNAL_FORMAT = 1  # changes when measurements kept earlier are no longer what they would be now


@dataclass(frozen=True)
class SubspaceChoice:
    """What the stage decided.

    Attributes:
        plan: the plan.
        codecs: by the first layer of their group.
        frontier: what was measured on the way; empty for a plan that was given.
        calibration_tokens: tokens that the codecs were fitted to.
        similarity: of adjacent layers on the calibration text.
        notes: remarks for the report.
    """

    plan: Plan
    codecs: dict[int, SubspaceCodec]
    frontier: list[FrontierPoint]
    calibration_tokens: int
    similarity: list[dict[str, Any]]
    notes: list[str]

    def groups(self) -> list[dict[str, object]]:
        """JSON-ready description of every code: segments, bits per element, bytes per token."""
        return [
            {
                "layers": list(codec.layers),
                "code_heads": len(codec.key.encoder),
                "key_bits": list(codec.key.bits),
                "value_bits": list(codec.value.bits),
                "key_bits_per_element": round(codec.key.bits_per_element, 4),
                "value_bits_per_element": round(codec.value.bits_per_element, 4),
                "bytes_per_token": bytes_per_token(codec.key) + bytes_per_token(codec.value),
            }
            for codec in self.codecs.values()
        ]


def split_text(folder: Path, options: ExportOptions, capacity: int, vocab_size: int) -> TextSplit:
    """Reads and splits the calibration text.

    Args:
        folder: holds the tokenizer.
        options: of the export.
        capacity: C; planning documents fit into it.
        vocab_size: of the model.

    Raises:
        TextError: missing, too short.
        PackageError: no tokenizer, or another model's.
    """
    tokenizer = TextTokenizer(folder)
    documents = read_documents(options.calibration, tokenizer, vocab_size)
    elsewhere = options.verify_text is not None
    split = split_documents(
        documents, min(PIECE, capacity), verify_elsewhere=elsewhere, prefix=tokenizer.prefix
    )
    length = min(SEGMENT_LENGTH, capacity)
    read = choose_documents(split.calibration, options.calibration_tokens, length, split.prefix)
    check_length(sum(map(len, read)))  # the calibration would tell it too, but late
    return split


def plan_subspace(exact_folder: Path, options: ExportOptions, split: TextSplit) -> SubspaceChoice:
    """Calibrates, plans and makes codecs.

    Args:
        exact_folder: an exact export of the model.
        options: of the export.
        split: of the calibration text.

    Raises:
        PlanError: the goal cannot be reached, or the given plan does not fit the model.
        MiniCacheError: as calibration raises.
    """
    manifest = Manifest.load(exact_folder)
    goal = options.goal()
    given = None
    if options.plan is not None:
        given = read_plan(options.plan, manifest.max_sequence_length)
        _check(given, manifest)
    sizes = [len(group.layers) for group in given.groups] if given else [goal.max_group_size]
    store = CalibrationStore(options.cache or default_store())
    sinks = given.sinks if given else options.sinks
    key, calibration = stored_calibration(exact_folder, options, split, max(sizes), sinks, store)
    calibration.multiples = multiples = find_target(options.target).multiples
    if given is not None:
        if given.sensitivities:
            calibration.weigh(given.sensitivities)
        plan, frontier = given, []
    else:
        prefill = default_prefill(manifest.max_sequence_length)
        meter = LossMeter(exact_folder, split.planning, prefill=prefill, scored=SCORED)
        settings: tuple[object, ...] = (
            JOURNAL_FORMAT, options.sinks, options.window, prefill, SCORED
        )  # fmt: skip
        if multiples != MULTIPLES:  # other targets keep the measurements that they had
            settings += (sorted(multiples.items()),)
        planning = fingerprint(exact_folder, split.planning, key, settings)
        search = Search(
            calibration,
            meter,
            goal,
            sinks=options.sinks,
            window=options.window,
            journal=Journal(store.path(planning, ".json")),
            quiet=options.quiet,
        )
        found = search.run()
        coded = coded_layers(manifest)
        rings = [Group((n,)) for n in range(manifest.num_layers) if n not in coded]
        groups = sorted([*found.candidate.groups, *rings], key=lambda group: group.layers)
        plan = Plan(
            "subspace",
            tuple(groups),
            manifest.max_sequence_length,
            options.window,
            options.sinks,
            options.rewind_slack,
            found.sensitivities,
        )
        frontier = found.frontier
    codecs = {codec.layers[0]: codec for codec in make_codecs(plan.groups, calibration)}
    return SubspaceChoice(
        plan,
        codecs,
        frontier,
        calibration.tokens,
        depth_similarity(calibration),
        calibration.notes,
    )


def _check(given: Plan, manifest: Manifest) -> None:
    """Checks a given plan against the model, before the long work.

    Raises:
        PlanError: it has other layers, codes those of sliding-window attention, or its code heads
            do not share the kv heads out evenly.
    """
    covered = sum(len(group.layers) for group in given.groups)
    if covered != manifest.num_layers:
        raise PlanError(f"the plan covers {covered} layers, the model has {manifest.num_layers}")
    for number, group in enumerate(given.groups):
        if group.mode == "subspace" and manifest.num_kv_heads % group.code_heads:
            raise PlanError(
                f"group {number} of the plan: code_heads is {group.code_heads}; give a divisor of "
                f"the {manifest.num_kv_heads} kv heads"
            )
    coded = [layer for group in given.groups if group.mode != "exact" for layer in group.layers]
    sliding = sorted(set(coded) - set(coded_layers(manifest)))
    if sliding:
        raise PlanError(
            f"the plan codes layers {', '.join(map(str, sliding))}, which attend to a sliding "
            "window and keep exact rings; give each of them a group of its own of mode exact"
        )
