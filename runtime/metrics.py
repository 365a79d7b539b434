"""Measures between two models' logits, in double precision."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from minicache.runtime.errors import SessionError

Float = npt.NDArray[np.float64]


def log_softmax(logits: npt.NDArray[np.floating]) -> Float:
    """Log probabilities over the last axis, float64; safe for large logits."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return wide


def perplexity(loss: float) -> float:
    """exp(loss) of a loss in nats per token; infinite beyond what a float holds."""
    return math.exp(loss) if loss < math.log(sys.float_info.max) else math.inf


def kl_divergence(reference: Float, other: Float) -> Float:
    """KL(reference || other) in nats over the last axis, from log probabilities."""
    probability = np.exp(reference)
    # Where the reference has no mass the product is 0, whatever the other says (even -inf - -inf).
    with np.errstate(invalid="ignore"):
        terms = probability * (reference - other)
    return np.asarray(np.where(probability > 0, terms, 0.0).sum(axis=-1))


@dataclass
class DocumentScore:
    """Sums over the scored tokens of one document.

    Attributes:
        tokens: scored tokens.
        loss_exported: negative log likelihood in nats, exported model.
        loss_original: likewise, original model; 0 when it was not run.
        kl: KL(original || exported).
        agreed: tokens at which both models rank the same token first.
    """

    tokens: int = 0
    loss_exported: float = 0.0
    loss_original: float = 0.0
    kl: float = 0.0
    agreed: int = 0

    def add(
        self,
        targets: npt.NDArray[np.int64],
        exported: npt.NDArray[np.floating],
        original: npt.NDArray[np.floating] | None,
    ) -> None:
        """Scores some positions.

        Args:
            targets: [S] the tokens that follow.
            exported: [S, V] logits.
            original: [S, V] logits, or None.

        Raises:
            SessionError: a logit is NaN.
        """
        for model, logits in (("exported", exported), ("original", original)):
            if logits is not None and np.isnan(logits).any():
                raise SessionError(
                    f"the {model} model gives logits that are NaN, so that nothing can be "
                    "measured; its weights are damaged, or its values too large for their type"
                )
        index = np.arange(len(targets)), targets
        log_exported = log_softmax(exported)
        self.tokens += len(targets)
        self.loss_exported -= float(log_exported[index].sum())
        if original is None:
            return
        log_original = log_softmax(original)
        self.loss_original -= float(log_original[index].sum())
        self.kl += float(kl_divergence(log_original, log_exported).sum())
        same = log_original.argmax(axis=-1) == log_exported.argmax(axis=-1)
        self.agreed += int(same.sum())


def ratio_interval(
    scores: list[DocumentScore], samples: int = 2000, seed: int = 0
) -> tuple[float, float] | None:
    """95 % interval of the perplexity ratio: paired bootstrap over documents.

    Both models are scored on the same documents, so a resample draws documents, not losses; tokens
    of one document depend on each other and would make the interval too narrow.

    Returns:
        Low and high; None for fewer than two documents.
    """
    if len(scores) < 2:
        return None
    tokens = np.array([score.tokens for score in scores], np.float64)
    extra = np.array([score.loss_exported - score.loss_original for score in scores])
    drawn = np.random.default_rng(seed).integers(len(scores), size=(samples, len(scores)))
    ratios = np.exp(extra[drawn].sum(axis=1) / tokens[drawn].sum(axis=1))
    low, high = np.quantile(ratios, (0.025, 0.975))
    return float(low), float(high)
