"""Choosing the next token from logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from minicache.runtime.errors import SessionError

FIRST_LOOK = 256  # tokens that are sorted before it is known whether more are needed


@dataclass(frozen=True)
class SamplingOptions:
    """How the next token is drawn; the defaults take the most likely one.

    The steps come in this order: repetition penalty, temperature, top-k, top-p, min-p. Each is
    defined as the ``LogitsProcessor`` of Hugging Face transformers of that name, except that top-k
    keeps exactly k tokens where more are equally likely.

    Attributes:
        temperature: 0 is greedy; higher is more random.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of likely tokens whose probability reaches this.
        min_p: keep tokens whose probability is at least this part of the likeliest one's; 0 keeps
            all (arXiv:2407.01082).
        repetition_penalty: over 1 makes tokens that occurred less likely (arXiv:1909.05858, 4.1).
        seed: of the random numbers; None: different in each run.

    Raises:
        SessionError: a value out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        # `not (...)` refuses NaN too.
        if not 0.0 <= self.temperature < float("inf"):
            raise SessionError(f"temperature is {self.temperature}; give 0 (greedy) or more")
        if not isinstance(self.top_k, (int, np.integer)) or self.top_k < 0:
            raise SessionError(f"top_k is {self.top_k}; give 0 (off) or more")
        if not 0.0 < self.top_p <= 1.0:
            raise SessionError(f"top_p is {self.top_p}; give more than 0 and at most 1")
        if not 0.0 <= self.min_p <= 1.0:
            raise SessionError(f"min_p is {self.min_p}; give 0 (off) to 1")
        if not 0.0 < self.repetition_penalty < float("inf"):
            raise SessionError(f"repetition_penalty is {self.repetition_penalty}; give more than 0")
        if self.seed is not None and self.seed < 0:
            raise SessionError(f"seed is {self.seed}; give 0 or more")


class Sampler:
    """Draws tokens; equal options, seeds and logits give equal tokens."""

    def __init__(self, options: SamplingOptions) -> None:
        self._options = options
        self._random = np.random.default_rng(options.seed)

    def choose(self, logits: npt.NDArray[np.float32], seen: Sequence[int] = ()) -> int:
        """Returns the next token.

        Args:
            logits: [V]; left as they are.
            seen: tokens of the text so far, for the repetition penalty.

        Raises:
            SessionError: the logits are not finite anywhere, which no sampling can mend.
        """
        scores, options = self._scores(logits, seen), self._options
        if options.temperature == 0.0:
            return int(np.argmax(scores))
        total = 0.0 if options.top_k else float(np.exp(scores).sum())
        filtered = options.top_p < 1.0 or options.min_p > 0.0
        draw, chosen = self._random.random(), -1
        for tokens in likeliest_first(scores, options.top_k):
            probability = self._kept(scores[tokens], total)
            ended = not total or len(probability) < len(tokens) or len(tokens) == len(scores)
            if filtered and not ended:
                continue  # how much is kept is not known yet
            reached = np.cumsum(probability)
            mark = draw * reached[-1] if ended else draw
            if ended or mark < reached[-1]:
                place = int(np.searchsorted(reached, mark, side="right"))
                chosen = int(tokens[min(place, len(reached) - 1)])
                break
        return chosen

    def distribution(
        self, logits: npt.NDArray[np.float32], seen: Sequence[int] = ()
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
        """Returns the tokens that may come next, and how likely each is; nothing is drawn.

        Args:
            logits: as ``choose``.
            seen: likewise.

        Returns:
            Tokens, the most likely first, and their probabilities up to a common factor.

        Raises:
            SessionError: as ``choose``.
        """
        scores = self._scores(logits, seen)
        if self._options.temperature == 0.0:
            return np.array([np.argmax(scores)]), np.ones(1)
        tokens = top_k_tokens(scores, self._options.top_k)
        probability = self._kept(scores[tokens], 0.0)
        return tokens[: len(probability)], probability

    def _scores(
        self, logits: npt.NDArray[np.float32], seen: Sequence[int]
    ) -> npt.NDArray[np.float64]:
        """Logits after penalty and temperature, the highest of them 0."""
        options = self._options
        if np.isnan(logits).any() or not np.isfinite(logits.max()):
            raise SessionError(
                "the logits hold NaN or are all infinite: the model computed nothing useful; "
                "check the export with minicache evaluate"
            )
        scores: npt.NDArray[np.float64] = logits.astype(np.float64)
        if options.repetition_penalty != 1.0 and len(seen):
            index = np.unique(np.asarray(seen))
            old, penalty = scores[index], options.repetition_penalty
            scores[index] = np.where(old > 0, old / penalty, old * penalty)
        # Shifted first: a tiny temperature must not turn the best score into an infinity.
        scores -= scores.max()
        return scores / options.temperature if options.temperature else scores

    def _kept(self, scores: npt.NDArray[np.float64], total: float) -> npt.NDArray[np.float64]:
        """Probabilities of the tokens that pass top-p and min-p.

        Args:
            scores: descending; of all tokens, or of the likeliest.
            total: sum of the exponentials of all; 0: of these, which are all.
        """
        probability = np.exp(scores)
        probability /= total or probability.sum()
        kept = top_p_count(probability, self._options.top_p)
        return probability[: min(kept, min_p_count(probability, self._options.min_p))]


def likeliest_first(scores: npt.NDArray[np.float64], top_k: int) -> Iterator[npt.NDArray[np.intp]]:
    """Yields ever longer beginnings of the tokens by descending score, at last all of them.

    Sorting a whole vocabulary takes longer than all the rest, and a draw seldom needs it. With
    ``top_k`` there is one beginning, of as many.
    """
    if not top_k:
        size = FIRST_LOOK
        while size < len(scores):
            yield top_k_tokens(scores, size)
            size *= 16
    yield top_k_tokens(scores, top_k)


def top_k_tokens(scores: npt.NDArray[np.float64], top_k: int) -> npt.NDArray[np.intp]:
    """Returns the tokens with the k highest scores (0: all), highest first, ties by number."""
    if 0 < top_k < len(scores):
        lowest = np.partition(scores, -top_k)[-top_k]
        candidates = np.flatnonzero(scores >= lowest)
    else:
        candidates = np.arange(len(scores))
    order = np.argsort(-scores[candidates], kind="stable")
    return candidates[order[: top_k or None]]


def top_p_count(probability: npt.NDArray[np.float64], top_p: float) -> int:
    """Returns how many of the descending probabilities are needed to reach ``top_p``."""
    if top_p >= 1.0:
        return len(probability)
    reached = np.cumsum(probability) >= top_p
    return int(np.argmax(reached)) + 1 if reached.any() else len(probability)


def min_p_count(probability: npt.NDArray[np.float64], min_p: float) -> int:
    """Returns how many descending probabilities are at least ``min_p`` of the first one."""
    return int(np.count_nonzero(probability >= min_p * probability[0]))
