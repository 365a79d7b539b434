"""What a model's logits are worth beside the original's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]  # [tokens, V]


@dataclass(frozen=True)
class Agreement:
    """Over some tokens of a text.

    Attributes:
        kl: KL(original || model) in nats per token.
        top1: share of tokens with the same most likely next one.
        perplexity_ratio: of the model's perplexity to the original's.
    """

    kl: float
    top1: float
    perplexity_ratio: float

    @classmethod
    def of(cls, original: Logits, model: Logits, targets: npt.NDArray[np.int64]) -> Agreement:
        """Compares logits of the same tokens; ``targets`` are the tokens that followed."""
        p, q = _log_softmax(original), _log_softmax(model)
        kl = float((np.exp(p) * (p - q)).sum(-1).mean())
        top1 = float((p.argmax(-1) == q.argmax(-1)).mean())
        rows = np.arange(len(targets))
        ratio = float(np.exp((p[rows, targets] - q[rows, targets]).mean()))
        return cls(kl, top1, ratio)


def _log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    x = logits.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(-1, keepdims=True)))
