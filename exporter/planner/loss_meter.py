"""Measures codecs on held-out documents, by simulation on the exact model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.exporter.baselines.cache_codec import CacheCodec
from minicache.exporter.baselines.exact_cache import ExactCache
from minicache.exporter.baselines.prefill_snapshot import PrefillSnapshot
from minicache.exporter.baselines.simulated_cache import SimulatedCache
from minicache.exporter.planner.measured_loss import MeasuredLoss
from minicache.runtime.metrics import kl_divergence, log_softmax
from minicache.runtime.progress import Step
from minicache.runtime.session import Session

Array = npt.NDArray[Any]

CHUNK = 32  # tokens per call, as decoding in small steps would read the codes


class LossMeter:
    """Holds the documents and an exact session; any number of codecs is measured on them.

    The beginning of a document is read once, whatever the number of codecs, and is not scored.

    Args:
        exact_folder: an exact export.
        documents: token ids, all longer than ``prefill`` + 1.
        prefill: unscored tokens.
        scored: at most so many scored tokens of each document.
    """

    def __init__(
        self,
        exact_folder: Path,
        documents: Sequence[Sequence[int]],
        *,
        prefill: int = 512,
        scored: int = 256,
    ) -> None:
        longest = max(map(len, documents))
        self.documents = [np.asarray(document[: prefill + scored + 1]) for document in documents]
        self.prefill = prefill
        capacity = min(longest, prefill + scored + 1)
        self._cache = ExactCache(Session(exact_folder, max_sequence_length=capacity))

    @property
    def tokens(self) -> int:
        """Scored tokens of one measurement."""
        return sum(len(document) - self.prefill - 1 for document in self.documents)

    def measure(
        self, codecs: Sequence[CacheCodec], step: Step, scored: int | None = None
    ) -> list[MeasuredLoss]:
        """Measures each codec.

        Args:
            codecs: what to measure.
            step: advanced by one per document and codec.
            scored: fewer scored tokens of each document; None: all.
        """
        losses = [MeasuredLoss() for _ in codecs]
        for document in self.documents:
            end = len(document) if scored is None else min(len(document), self.prefill + scored + 1)
            ids = document[:end]
            snapshot = PrefillSnapshot.take(self._cache, ids[: self.prefill])
            plain = list(self._run(None, snapshot, ids))
            weights = [_softmax(logits) for logits in plain]
            for codec, loss in zip(codecs, losses, strict=True):
                self._add(loss, self._run(codec, snapshot, ids), plain, weights, ids)
                step.advance()
        return losses

    def _run(
        self, codec: CacheCodec | None, snapshot: PrefillSnapshot, ids: Array
    ) -> Iterator[Array]:
        """Logits ``[S, V]`` of chunk after chunk; the last token is only predicted."""
        simulation = SimulatedCache(self._cache, codec)
        simulation.start(snapshot)
        for start in range(self.prefill, len(ids) - 1, CHUNK):
            end = min(start + CHUNK, len(ids) - 1)
            yield simulation.forward(ids[None, start:end])[0]

    def _add(
        self,
        loss: MeasuredLoss,
        coded: Iterator[Array],
        plain: Sequence[Array],
        weights: Sequence[Array],
        ids: Array,
    ) -> None:
        kl = extra = 0.0
        agreed = at = 0
        for logits, base, weight in zip(coded, plain, weights, strict=True):
            rows = np.arange(len(logits))
            targets = ids[self.prefill + at + 1 + rows]
            row_kl, row_extra = _losses(logits, base, weight, targets)
            kl += float(row_kl.sum())
            extra += float(row_extra.sum())
            agreed += int((logits.argmax(axis=-1) == base.argmax(axis=-1)).sum())
            at += len(logits)
        loss.tokens.append(at)
        loss.kl.append(kl)
        loss.extra.append(extra)
        loss.agreed.append(agreed)


def _losses(logits: Array, base: Array, weight: Array, targets: Array) -> tuple[Array, Array]:
    """KL and rise of the negative log likelihood of each row, ``[S]``.

    With d the change of the logits, KL = log E[exp d] - E[d] under the exact model. It is computed
    from d itself, as small losses vanish in differences of log softmaxes, and from d less its mean,
    which changes nothing and keeps E[exp d] above 1.
    """
    change = logits - base
    change -= (weight * change).sum(axis=-1, dtype=np.float64, keepdims=True).astype(change.dtype)
    rows = np.arange(len(logits))
    with np.errstate(over="ignore", invalid="ignore"):
        normaliser = np.log1p((weight * np.expm1(change)).sum(axis=-1, dtype=np.float64))
    kl = normaliser - (weight * change).sum(axis=-1, dtype=np.float64)
    extra = normaliser - change[rows, targets]
    ruined = ~np.isfinite(normaliser)  # logits off by more than exp holds
    if ruined.any():
        exact, coded = log_softmax(base[ruined]), log_softmax(logits[ruined])
        kl[ruined] = kl_divergence(exact, coded)
        extra[ruined] = (exact - coded)[np.arange(len(exact)), targets[ruined]]
    return kl, extra


def _softmax(logits: Array) -> Array:
    weight = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weight /= weight.sum(axis=-1, keepdims=True)
    return np.asarray(weight)
