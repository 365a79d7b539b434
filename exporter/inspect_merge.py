"""What ``inspect`` tells of merging: asked of the rules that an export goes by, never restated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from minicache.exporter.calibration.moments import affordable_span
from minicache.exporter.deviations import Deviation
from minicache.exporter.facts import ModelFacts
from minicache.exporter.normalise import LayerSite, NormalisedModel
from minicache.exporter.options import MODES, ExportOptions
from minicache.exporter.planner.structure import Structure
from minicache.exporter.preflight import check_target, choose_capacity
from minicache.exporter.targets import TARGETS
from minicache.runtime.errors import MiniCacheError
from minicache.runtime.tokenizer import TextTokenizer


def merge_kinds(layers: Sequence[LayerSite]) -> list[dict[str, Any]]:
    """The layers by kind, in the order of their first layer; those of a kind may share a code.

    Each has ``layers``, ``local_window``, ``codable`` and, where not codable, a ``reason``.
    """
    by_kind: dict[object, list[LayerSite]] = {}
    for layer in layers:
        by_kind.setdefault(layer.kind, []).append(layer)
    return [
        {
            "layers": [layer.layer for layer in members],
            "local_window": members[0].local_window,
            "codable": not members[0].local_window,
            "reason": _reason(members[0].local_window),
        }
        for members in by_kind.values()
    ]


def _reason(window: int, whose: str = "their") -> str | None:
    # The modes that code ask for local_window == 0: calibration/exact_layers.py, paper_plan.py.
    return f"a ring of {window} tokens bounds {whose} cache already" if window else None


def mode_facts(layers: Sequence[LayerSite], facts: ModelFacts, folder: Path) -> dict[str, Any]:
    """By mode of an export with its default options: possible, why not, and the coded groups.

    Args:
        layers: of the normalised model.
        facts: of the files beside it.
        folder: holds the tokenizer, which the coded modes need for their texts.
    """
    found: dict[str, Any] = {}
    for mode in MODES:
        options, groups = ExportOptions(mode=mode), list[list[int]]()
        reason = _refusal(partial(_plan, options, layers, facts, groups))
        if groups and reason is None:
            reason = _refusal(partial(TextTokenizer, folder))
        found[mode] = {"possible": reason is None, "reason": reason, "groups": groups}
    return found


def _plan(
    options: ExportOptions, layers: Sequence[LayerSite], facts: ModelFacts, groups: list[list[int]]
) -> None:
    """Makes the plan of a mode and adds its coded groups to ``groups``.

    Raises:
        MiniCacheError: as an export.
    """
    plan = options.make_plan(list(layers), choose_capacity(options, facts))
    groups += [list(group.layers) for group in plan.groups if group.mode != "exact"]
    if options.mode == "subspace":  # its plan is searched later, from the exact one
        groups += _largest_groups(layers, options)


def _largest_groups(layers: Sequence[LayerSite], options: ExportOptions) -> list[list[int]]:
    """The largest groups that the search of a plan tries; it tries smaller ones, too."""
    full = [layer for layer in layers if not layer.local_window]
    widths = [layer.num_kv_heads * layer.head_dim for layer in full]
    size = affordable_span(widths, options.max_group_size)
    cut = Structure(size).groups(full)
    return [[full[place].layer for place in places] for places in cut]


def target_facts(normalised: NormalisedModel) -> dict[str, Any]:
    """By target: whether it can run the model, and why not."""
    found = {}
    for name, target in TARGETS.items():
        reason = _refusal(partial(check_target, normalised, target))
        found[name] = {"possible": reason is None, "reason": reason}
    return found


def _refusal(check: Callable[[], object]) -> str | None:
    """The sentence that an export would stop with; None where it would go on."""
    try:
        check()
    except MiniCacheError as error:
        return str(error)
    return None


def layer_notes(
    kinds: Sequence[Mapping[str, Any]],
    modes: Mapping[str, Any],
    deviations: Sequence[Deviation],
) -> dict[int, list[str]]:
    """By layer: what is special about it."""
    notes: dict[int, list[str]] = {}
    for kind in kinds:
        window = kind["local_window"]
        for layer in kind["layers"]:
            if window:
                notes.setdefault(layer, []).append(f"exact in every mode: {_reason(window, 'its')}")
            elif len(kind["layers"]) == 1 and len(kinds) > 1:
                notes.setdefault(layer, []).append("no other layer is alike: it is coded alone")
    merged = {layer for group in modes["paper"]["groups"] for layer in group}
    for kind in kinds:
        for layer in kind["layers"] if merged and kind["codable"] else ():
            if layer not in merged:
                notes.setdefault(layer, []).append("exact in the default plan of --mode paper")
    for deviation in deviations:
        for layer in deviation.layers:
            notes.setdefault(layer, []).append(deviation.text)
    return notes
