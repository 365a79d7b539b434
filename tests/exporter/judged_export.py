"""Exports a model in a mode, with much in its codes, and judges the export node by node."""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from minicache.exporter import stored_calibration
from minicache.exporter.io import find_model_file, load_model, read_facts
from minicache.exporter.normalise import LayerSite, normalise
from minicache.exporter.pipeline import ExportResult
from minicache.runtime.manifest import Manifest
from tests.exporter.formula_bytes import exact_bytes, retained_fraction, state_bytes
from tests.exporter.node_by_node import Change, NodeByNode, ragged_calls
from tests.exporter.subspace_workplace import Workplace

# Options by what a table or a test calls them.
MODES: dict[str, dict[str, Any]] = {
    "exact": {"mode": "exact"},
    "paper": {"mode": "paper"},
    "aligned": {"mode": "paper", "align": True, "code_bits": 4, "retention": "budget:0.05"},
    "subspace": {"mode": "subspace"},
}
MOST_TOKENS, CAPACITY = 512, 128  # of the export, and of the walk
WINDOW, SLACK, SINKS, SEGMENT = 8, 8, 2, 64
BITS = {"key_bits_per_element": 5, "value_bits_per_element": 4}
# Longer than windows of 32 and their rings, than a segment, and in one call than the slack;
# a row waits for a call.
NEW_TOKENS = [(90, 41), (0, 30), (20, 1), *[(1, 1)] * 8]


@dataclass(frozen=True)
class Verdict:
    """What was judged, and how far kernels and reference are apart.

    Attributes:
        coded: layers of every coded group.
        worst: largest difference of an attention output, relative to the largest of its node.
        differing: share of code components that are a step apart.
        resident: bytes of the state at a capacity of ``MOST_TOKENS``, one row.
        exact: bytes of the same layers in exact mode.
    """

    coded: list[list[int]]
    worst: float
    differing: float
    resident: int
    exact: int


def write_plan(layers: Sequence[LayerSite], path: Path) -> None:
    """Writes a plan that pairs layers of full attention that are alike, near each other or not.

    The heads of every second pair are coded together.
    """
    alike: dict[tuple[int | str, ...], list[int]] = defaultdict(list)
    for layer in layers:
        if not layer.local_window:
            alike[layer.kind].append(layer.layer)
    pairs = [places[at : at + 2] for places in alike.values() for at in range(0, len(places), 2)]
    groups: list[dict[str, Any]] = [
        {"layers": [layer.layer]} for layer in layers if layer.local_window
    ]
    for number, pair in enumerate(sorted(pairs)):
        heads = 1 if number % 2 else layers[pair[0]].num_kv_heads
        groups.append({"layers": pair, "code_heads": heads, **BITS})
    groups.sort(key=lambda group: list(group["layers"]))
    plan = {"groups": groups, "window": WINDOW, "sinks": SINKS, "slack": SLACK}
    path.write_text(json.dumps(plan), encoding="utf-8")


def export_in_mode(place: Workplace, name: str) -> ExportResult:
    """Exports the model of a workplace.

    Args:
        place: of the model.
        name: of ``MODES``; the export's folder has it, too.

    Raises:
        MiniCacheError: the model is refused, or has nothing that the mode could code.
    """
    file = find_model_file(place.model)
    most = read_facts(file).max_positions or MOST_TOKENS
    settings = {"max_sequence_length": min(most, MOST_TOKENS), **MODES[name]}
    if settings["mode"] == "exact":
        settings["rewind_slack"] = SLACK
    if settings["mode"] == "paper":
        settings |= {"window": WINDOW, "sinks": SINKS, "rewind_slack": SLACK}
    if settings["mode"] == "subspace":
        settings["plan"] = path = place.root / "plan.json"
        write_plan(normalise(load_model(file), read_facts(file)).layers, path)
    if settings["mode"] == "subspace" or "align" in settings:
        settings |= {"calibration": place.text, "calibration_tokens": 2100, "cache": place.cache}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_calibration, "SEGMENT_LENGTH", SEGMENT)
        return place.export(name, **settings)


def watch(folder: Path, library: Path, change: Change | None = None) -> NodeByNode:
    """Opens an export in ``CAPACITY`` tokens of poisoned memory and judges it over a ragged text.

    Raises:
        AssertionError: kernel and reference differ.
    """
    rows = Manifest.load(folder).fixed_batch or len(NEW_TOKENS[0])
    watched = NodeByNode(folder, library, rows, CAPACITY, change)
    new = [call[:rows] for call in NEW_TOKENS if any(call[:rows])]
    for call in ragged_calls(new, watched.manifest.vocab_size):
        watched.step(call)
    watched.finish()
    return watched


def judge_export(place: Workplace, name: str, library: Path) -> Verdict:
    """Exports a model in a mode of ``MODES``, judges nodes and bytes.

    Raises:
        MiniCacheError: as ``export_in_mode``.
        AssertionError: kernel and reference, or bytes and formula, differ.
    """
    watched = watch(export_in_mode(place, name).folder, library)
    manifest, cache = watched.manifest, watched.cache
    coded, resident, exact = [], 0, 0
    for group, judge in watched.judges.items():
        attributes = judge.attributes
        fraction = retained_fraction(manifest, group)
        sizes = attributes, manifest.dtype
        bytes_of = functools.partial(state_bytes, *sizes, fraction=fraction)
        found = sum(array.nbytes for array in cache.group(group).values())
        assert found == bytes_of(cache.batch_size, CAPACITY), f"bytes of group {group}"
        resident += bytes_of(1, MOST_TOKENS)
        if attributes["mode"] == "exact":
            exact += bytes_of(1, MOST_TOKENS)
            continue
        exact += exact_bytes(*sizes, MOST_TOKENS)
        coded.append([int(layer) for layer in manifest.plan["groups"][group]["layers"]])
        for capacity in (MOST_TOKENS, 8 * MOST_TOKENS):
            assert bytes_of(1, capacity) < exact_bytes(*sizes, capacity), (
                f"group {group}, {capacity}"
            )
    codes = sum(judge.codes for judge in watched.judges.values())
    assert bool(codes) == (name != "exact")
    return Verdict(
        coded=coded,
        worst=max(judge.worst for judge in watched.judges.values()),
        differing=sum(judge.differing for judge in watched.judges.values()) / max(codes, 1),
        resident=resident,
        exact=exact,
    )
