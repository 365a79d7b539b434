"""Calibrates the ``subspace`` mode: runs a text through an exact export and gathers statistics.

1. ``rope_probe``, ``output_metric``: what the graph itself says, without text.
2. Some documents give first query moments: the metric that weighs a token's length in step 3.
3. All documents, once: query moments, joint moments of segment-relative keys and of values, and a
   sample of tokens. ``calibration.Calibration`` makes codecs of any grouping from these.

Memory does not depend on the length of the text. Layers of sliding-window attention are left out:
their rings are bounded, nothing codes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from minicache.exporter.calibration.activation_capture import ActivationCapture
from minicache.exporter.calibration.calibration import CalibratedLayer, Calibration
from minicache.exporter.calibration.exact_layers import (
    ExactLayer,
    find_exact_layers,
    full_layers,
)
from minicache.exporter.calibration.gather import Gatherer
from minicache.exporter.calibration.output_metric import output_metric
from minicache.exporter.calibration.rope_probe import Rope, probe_rope
from minicache.exporter.calibration.sample import choose_documents
from minicache.exporter.io import load_model
from minicache.exporter.plan import DEFAULT_SINKS
from minicache.runtime.corpus import read_documents
from minicache.runtime.errors import TextError
from minicache.runtime.manifest import Manifest
from minicache.runtime.progress import progress
from minicache.runtime.tokenizer import TextTokenizer

DEFAULT_TOKENS = 32768
DEFAULT_SEGMENT = 1024
DEFAULT_GROUP = 4
FEWEST_TOKENS = 2048
ENOUGH_TOKENS = 16384
WARM_UP_TOKENS = 2048


def calibrate(
    exact_folder: Path,
    text: Path | None = None,
    *,
    documents: Sequence[Sequence[int]] | None = None,
    prefix: Sequence[int] = (),
    max_tokens: int = DEFAULT_TOKENS,
    segment_length: int = DEFAULT_SEGMENT,
    max_sequence_length: int | None = None,
    max_group_size: int = DEFAULT_GROUP,
    sinks: int = DEFAULT_SINKS,
    quiet: bool = True,
) -> Calibration:
    """Calibrates a model on a text.

    Args:
        exact_folder: an exact export of the model (``minicache-export --mode exact``).
        text: UTF-8, form feeds separate documents; None takes the text that ships.
        documents: token ids instead of a text.
        prefix: with ``documents``: what the tokenizer puts before every text.
        max_tokens: tokens to read, spread over the text.
        segment_length: positions L that keys are coded relative to, and longest document; 0 codes
            keys at their own positions (documents are then up to ``DEFAULT_SEGMENT`` long).
        max_sequence_length: largest context the codec is for; None: the export's.
        max_group_size: layers of the largest group that the result can make a codec for.
        sinks: first tokens of each document to leave out: they stay exact, and are outliers.
        quiet: no progress on stderr.

    Raises:
        TextError: the text is too short.
        UnsupportedModelError: no exact export, no layer of full attention, or activations that are
            not finite.
        MiniCacheError: the folder cannot be opened.
    """
    manifest = Manifest.load(exact_folder)
    capacity = max_sequence_length or manifest.max_sequence_length
    length = min(segment_length or DEFAULT_SEGMENT, capacity)
    if documents is None:
        tokenizer = TextTokenizer(exact_folder)
        documents = read_documents(text, tokenizer, manifest.vocab_size)
        prefix = tokenizer.prefix
    pieces = choose_documents(documents, max_tokens, length, prefix)
    read = sum(map(len, pieces))
    notes = check_length(read)
    model = load_model(exact_folder / manifest.model)
    found = full_layers(find_exact_layers(model))
    with progress("reading weights", total=len(found), quiet=quiet) as step:
        # Of all layers: models may turn full-attention layers by other frequencies than the rest.
        probed = probe_rope(model, manifest.max_sequence_length, bool(manifest.fixed_batch))
        ropes = [probed[layer.layer] for layer in found]
        metrics = []
        for layer in found:
            metric, note = output_metric(model, layer)
            metrics.append(metric)
            notes += [note] if note else []
            step.advance()
    layers = _describe(found, ropes)
    notes += _rope_notes(layers)
    gatherer = Gatherer(layers, metrics, segment_length, sinks, max_group_size, notes)
    capture = ActivationCapture(exact_folder, max(map(len, pieces)))
    warm_up = choose_documents(pieces, min(WARM_UP_TOKENS, read), length)
    total = read + sum(map(len, warm_up))
    with progress("calibrating", total=total, quiet=quiet) as step:
        gatherer.warm_up(capture, warm_up, step)
        gatherer.gather(capture, pieces, step)
    return Calibration(
        layers=tuple(layers),
        query_moments=[total / gatherer.queries for total in gatherer.query_sums],
        output_metrics=metrics,
        moments=gatherer.moments,
        samples={kind: sample.arrays for kind, sample in gatherer.samples.items()},
        segment_length=segment_length,
        max_sequence_length=capacity,
        sinks=sinks,
        tokens=read,
        notes=notes,
    )


def check_length(read: int) -> list[str]:
    """Remarks for the report on a text of so many tokens.

    Raises:
        TextError: too few.
    """
    if read < FEWEST_TOKENS:
        raise TextError(
            f"the calibration text has {read} usable tokens, at least {FEWEST_TOKENS} are needed "
            f"and {ENOUGH_TOKENS} are enough; give a longer text"
        )
    if read < ENOUGH_TOKENS:
        return [
            f"calibrated on {read} tokens; below {ENOUGH_TOKENS} a codec fits its calibration text "
            "better than others: give a longer text of the kinds that the model will read"
        ]
    return []


def _describe(found: Sequence[ExactLayer], ropes: Sequence[Rope]) -> list[CalibratedLayer]:
    """Layers with the number of their kind: shapes and RoPE alike."""
    shapes: list[tuple[tuple[int, ...], Rope]] = []
    layers = []
    for layer, rope in zip(found, ropes, strict=True):
        shape = (layer.num_heads, layer.num_kv_heads, layer.head_dim)
        alike = (n for n, (s, r) in enumerate(shapes) if s == shape and r.same_as(rope))
        kind = next(alike, len(shapes))
        if kind == len(shapes):
            shapes.append((shape, rope))
        layers.append(CalibratedLayer(layer.layer, *shape, kind, rope))
    return layers


def _rope_notes(layers: Sequence[CalibratedLayer]) -> list[str]:
    unknown = [layer.layer for layer in layers if layer.rope.kind == "unknown"]
    if not unknown:
        return []
    return [
        f"layers {', '.join(map(str, unknown))}: keys depend on the position in another way than "
        "by one rotation per position; they are coded without segments, so that quality is known "
        "for positions of the calibration text only"
    ]
