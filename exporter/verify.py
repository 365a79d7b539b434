"""What an export costs on held-out text, beside what users have otherwise.

The export runs its real kernels against the original model. Its rivals have none here: they are
simulated on the exact form of the model, on the same tokens of the same documents, and code the
same layers: those of full attention. Rings of sliding-window layers count in everybody's bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minicache.exporter.baselines.cache_codec import CacheCodec
from minicache.exporter.baselines.cache_shape import FP16_BYTES, CacheShape
from minicache.exporter.baselines.exact_cache import ExactCache, can_simulate
from minicache.exporter.baselines.exact_vectors import exact_vectors
from minicache.exporter.baselines.kivi import GROUP, Kivi
from minicache.exporter.baselines.static_integer import StaticInteger
from minicache.exporter.planner.loss_meter import LossMeter
from minicache.exporter.texts import Texts
from minicache.runtime.accounting import kv_elements
from minicache.runtime.evaluate import EvaluationResult, default_prefill
from minicache.runtime.manifest import Manifest
from minicache.runtime.progress import progress
from minicache.runtime.session import Session

SCALE_DOCUMENTS, SCALE_TOKENS = 4, 1024  # that static scales are fitted to


@dataclass(frozen=True)
class Verification:
    """Measured quality.

    Attributes:
        evaluation: of the export, by its own kernels.
        baselines: of its rivals: name, bits, bytes at the context, perplexity ratio, KL, top-1.
    """

    evaluation: EvaluationResult
    baselines: list[dict[str, Any]]


def measure_rivals(exact_folder: Path, texts: Texts, *, quiet: bool) -> list[dict[str, Any]]:
    """Measures the rivals of an export.

    Args:
        exact_folder: the exact form of the model.
        texts: held-out documents, and others that static scales are fitted to.
        quiet: no progress on stderr.

    Returns:
        JSON-ready rows; none without documents, or for a model whose cache cannot be simulated.
    """
    manifest = Manifest.load(exact_folder)
    documents, context = texts.verification, texts.context
    if not documents or not can_simulate(manifest):
        return []
    prefill = default_prefill(context)
    # Before the meter's session is opened: this one is closed again.
    with progress("fitting rivals", total=None, quiet=quiet):
        rivals = _rivals(exact_folder, manifest, texts.scales)
    meter = LossMeter(exact_folder, documents, prefill=prefill, scored=context - prefill - 1)
    rows = []
    with progress("measuring rivals", total=len(rivals) * len(documents), quiet=quiet) as step:
        losses = meter.measure(rivals, step)
    plain, rings = FP16_BYTES * kv_elements(manifest, context), CacheShape.of(manifest).ring_bytes
    for codec, loss in zip(rivals, losses, strict=True):
        low, high = loss.interval()
        size = codec.cache_bytes(context) + rings
        rows.append(
            {
                "name": codec.name,
                "bits_per_element": codec.bits_per_element,
                "kv_bytes": size,
                "compression_ratio": plain / size,
                "perplexity_ratio": loss.perplexity_ratio,
                "perplexity_ratio_low": low,
                "perplexity_ratio_high": high,
                "kl_mean": loss.kl_mean,
                "top1_agreement": loss.top1_agreement,
            }
        )
    return rows


def _rivals(
    exact_folder: Path, manifest: Manifest, scale_documents: Sequence[Sequence[int]]
) -> list[CacheCodec]:
    shape = CacheShape.of(manifest)
    few = [list(document[:SCALE_TOKENS]) for document in scale_documents[:SCALE_DOCUMENTS]]
    capacity = min(max(map(len, few)), manifest.max_sequence_length)
    few = [document[:capacity] for document in few]
    with Session(exact_folder, max_sequence_length=capacity) as session:
        keys, values = exact_vectors(ExactCache(session), few)
    found: list[CacheCodec] = [StaticInteger.fit(keys, values, bits) for bits in (8, 4)]
    if shape.head_dim % GROUP == 0:
        found += [Kivi(bits, shape) for bits in (4, 2)]
    return found
