"""Statistics of paired comparisons: the same documents, several configurations.

A resample of the bootstrap draws documents, not tokens: tokens of one document depend on each other
and would make the intervals too narrow. It draws within each kind of text, as the kinds are chosen
and not sampled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float64]
SAMPLES = 4000
LEVEL = (0.025, 0.975)


@dataclass(frozen=True)
class DocumentRow:
    """One document under one configuration; sums are over its scored tokens.

    Attributes:
        kind: of text.
        document: identifies the document.
        tokens: scored tokens.
        loss: negative log likelihood in nats.
        loss_original: likewise of the original model.
        kl: KL(original || configuration) in nats.
        agreed: tokens for which both rank the same token first.
    """

    kind: str
    document: str
    tokens: int
    loss: float
    loss_original: float
    kl: float
    agreed: int


@dataclass(frozen=True)
class Ratio:
    """A ratio of perplexities with its 95 % interval; None with fewer than two documents a kind."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Summary:
    """A configuration against the original; kinds of text count alike, whatever their sizes.

    Attributes:
        by_kind: perplexity ratio of each kind.
        ratio: geometric mean over the kinds.
        kl: mean KL in nats per token.
        top1: share of tokens for which both rank the same token first.
        documents: number of documents.
    """

    by_kind: dict[str, float]
    ratio: Ratio
    kl: float
    top1: float
    documents: int


def summarise(rows: Sequence[DocumentRow]) -> Summary:
    """Summarises a configuration's rows, at least one."""
    kinds = by_kind(rows)
    extra = {kind: [row.loss - row.loss_original for row in found] for kind, found in kinds.items()}
    tokens = {kind: [row.tokens for row in found] for kind, found in kinds.items()}
    sums = {kind: sum(counts) for kind, counts in tokens.items()}
    return Summary(
        by_kind={kind: float(np.exp(sum(extra[kind]) / sums[kind])) for kind in kinds},
        ratio=mean_ratio(extra, tokens),
        kl=float(np.mean([sum(r.kl for r in found) / sums[kind] for kind, found in kinds.items()])),
        top1=float(
            np.mean([sum(r.agreed for r in found) / sums[kind] for kind, found in kinds.items()])
        ),
        documents=len(rows),
    )


def versus(first: Sequence[DocumentRow], second: Sequence[DocumentRow]) -> Ratio:
    """Perplexity of one configuration over another's, on the documents that both have.

    Raises:
        ValueError: they have no document in common.
    """
    known = {(row.kind, row.document): row for row in second}
    pairs = [(row, known[row.kind, row.document]) for row in first if _key(row) in known]
    if not pairs:
        raise ValueError("the configurations have no document in common")
    extra: dict[str, list[float]] = {}
    tokens: dict[str, list[int]] = {}
    for one, other in pairs:
        extra.setdefault(one.kind, []).append(one.loss - other.loss)
        tokens.setdefault(one.kind, []).append(one.tokens)
    return mean_ratio(extra, tokens)


def mean_ratio(
    extra: Mapping[str, Sequence[float]],
    tokens: Mapping[str, Sequence[int]],
    samples: int = SAMPLES,
    seed: int = 0,
) -> Ratio:
    """Exponential of the mean over kinds of the mean extra loss per token.

    Args:
        extra: by kind, each document's extra loss in nats.
        tokens: likewise, its tokens.
        samples: resamples of the bootstrap.
        seed: of the resamples; the same documents always give the same interval.
    """
    rng = np.random.default_rng(seed)
    values: list[float] = []
    drawn: list[Float] = []
    for kind in sorted(extra):
        loss, count = (np.asarray(found[kind], np.float64) for found in (extra, tokens))
        values.append(float(loss.sum() / count.sum()))
        index = rng.integers(len(loss), size=(samples, len(loss)))
        drawn.append(loss[index].sum(axis=1) / count[index].sum(axis=1))
    value = float(np.exp(np.mean(values)))
    if min(len(found) for found in extra.values()) < 2:
        return Ratio(value, None, None)
    low, high = np.quantile(np.exp(np.mean(drawn, axis=0)), LEVEL)
    return Ratio(value, float(low), float(high))


def by_kind(rows: Sequence[DocumentRow]) -> dict[str, list[DocumentRow]]:
    """Rows by kind of text, kinds in the order of their first rows."""
    found: dict[str, list[DocumentRow]] = {}
    for row in rows:
        found.setdefault(row.kind, []).append(row)
    return found


def _key(row: DocumentRow) -> tuple[str, str]:
    return row.kind, row.document
