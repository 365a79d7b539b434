"""The ways to keep a model's cache, side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minicache.exporter.estimation.estimate import Estimate, estimate, plain_estimate
from minicache.exporter.estimation.geometry import Geometry
from minicache.exporter.estimation.hypothetical import hypothetical_manifest
from minicache.exporter.options import ExportOptions
from minicache.runtime.errors import PlanError
from minicache.runtime.manifest import Manifest

DEFAULT_RATIOS = (5.33, 8.0, 16.0)
DEFAULT_CONTEXT = 8192
PAPER_BITS = (16, 4)
# Static quantisation per channel, as ONNX Runtime's GroupQueryAttention has it: scales are few.
PLAIN = {"fp16": 16.0, "int8, static": 8.0, "int4, static": 4.0}


@dataclass(frozen=True)
class Question:
    """For what sizes are asked.

    Attributes:
        context: tokens per sequence; None: the model's own limit, ``DEFAULT_CONTEXT`` at most.
        batch: sequences.
        memory: bytes that caches may take; None: do not count streams.
        ratios: of ``subspace`` mode.
        max_group_size: layers of its largest group.
    """

    context: int | None = None
    batch: int = 1
    memory: int | None = None
    ratios: Sequence[float] = DEFAULT_RATIOS
    max_group_size: int = ExportOptions.max_group_size


@dataclass(frozen=True)
class Comparison:
    """The estimates of one model.

    Attributes:
        name: of the model.
        description: its geometry in words.
        context: tokens per sequence.
        estimates: the fp16 cache first.
        notes: what was left out, and why.
    """

    name: str
    description: str
    context: int
    estimates: list[Estimate]
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Returns it as JSON-ready data."""
        return dataclasses.asdict(self)


def compare(source: Geometry | Manifest, question: Question, name: str = "") -> Comparison:
    """Estimates every way to keep the cache of ``source``; of an export, its own.

    Args:
        source: as ``find_geometry`` returns it.
        question: the sizes.
        name: of an export.

    Raises:
        PlanError: the context is larger than an export allows, or an option is out of range.
    """
    if isinstance(source, Manifest):
        return _of_export(source, question, name)
    context = question.context or min(source.max_positions or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    exact = hypothetical_manifest(source, ExportOptions(mode="exact"), context)
    found, notes = _plain(exact, question, context), list[str]()
    for label, options in _wanted(question):
        try:
            manifest = hypothetical_manifest(source, options, context)
        except PlanError as error:
            if options.mode == "subspace" and any(not one.local_window for one in source.layers):
                raise  # an option is wrong, not the model
            note = f"no {options.mode} mode: {error}"
            notes += [note] if note not in notes else []
            continue
        found.append(estimate(label, manifest, context, question.batch, question.memory))
    return Comparison(source.name, _words(source), context, found, notes)


def _wanted(question: Question) -> list[tuple[str, ExportOptions]]:
    size = question.max_group_size
    return [
        ("exact", ExportOptions(mode="exact")),
        *(
            (f"paper, {bits} bit", ExportOptions(mode="paper", code_bits=bits))
            for bits in PAPER_BITS
        ),
        (
            "paper, 4 bit, deltas 4 bit",
            ExportOptions(mode="paper", code_bits=4, delta_bits=4),
        ),
        *(
            (f"subspace, {ratio:g} x", ExportOptions(ratio=ratio, max_group_size=size))
            for ratio in question.ratios
        ),
    ]


def _of_export(manifest: Manifest, question: Question, name: str) -> Comparison:
    context = question.context or min(manifest.max_sequence_length, DEFAULT_CONTEXT)
    if context > manifest.max_sequence_length:
        raise PlanError(
            f"the context is {context}; {name!r} was exported for at most "
            f"{manifest.max_sequence_length} tokens"
        )
    found = _plain(manifest, question, context)
    found.append(estimate(manifest.mode, manifest, context, question.batch, question.memory))
    words = (
        f"export in {manifest.mode} mode: {manifest.num_layers} layers, {manifest.num_heads} query "
        f"and {manifest.num_kv_heads} kv heads of {manifest.head_dim}, {manifest.dtype}"
    )
    return Comparison(name, words, context, found, [])


def _plain(manifest: Manifest, question: Question, context: int) -> list[Estimate]:
    return [
        plain_estimate(label, bits, manifest, context, question.batch, question.memory)
        for label, bits in PLAIN.items()
    ]


def _words(geometry: Geometry) -> str:
    layers, first = geometry.layers, geometry.layers[0]
    sliding = sorted({layer.local_window for layer in layers if layer.local_window})
    text = (
        f"{len(layers)} layers, {geometry.num_heads} query and {first.num_kv_heads} kv heads of "
        f"{first.head_dim}, {geometry.dtype}"
    )
    if sliding:
        number = sum(layer.local_window > 0 for layer in layers)
        text += f"; {number} of the layers slide over {' and '.join(map(str, sliding))} tokens"
    return text
