"""One text that is being continued: draws its tokens, turns them into text, and ends it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from minicache.runtime.generated_token import GeneratedToken, TokenLogprob
from minicache.runtime.metrics import log_softmax
from minicache.runtime.sampling import Sampler, top_k_tokens
from minicache.runtime.stop import StopMatcher
from minicache.runtime.tokenizer import IncrementalDecoder


class Continuation:
    """Between two calls of the model: logits in, a token out. Where they come from is not its part.

    Args:
        prompt: token ids.
        max_new_tokens: at most so many.
        sampler: draws the tokens.
        matcher: looks for stop strings.
        decoder: makes text of tokens; None: there is no tokenizer, and no text.
        eos: tokens that end it with ``eos``.
        stop_tokens: tokens that end it with ``stop``.
        logprobs: how many likely tokens to give with each token.
        progress: called with a number of prompt tokens as they are read; see ``GenerateOptions``.

    Attributes:
        tokens: the prompt and what came after it.
        prompt_tokens: tokens of the prompt.
        finished: whether the last token has come.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        sampler: Sampler,
        matcher: StopMatcher,
        decoder: IncrementalDecoder | None,
        *,
        eos: frozenset[int] = frozenset(),
        stop_tokens: frozenset[int] = frozenset(),
        logprobs: int = 0,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.tokens = list(prompt)
        self.prompt_tokens = len(self.tokens)
        self.finished = False
        self.progress = progress
        self._most = self.prompt_tokens + max_new_tokens
        self._sampler, self._matcher, self._decoder = sampler, matcher, decoder
        self._eos, self._stop_tokens, self._logprobs = eos, stop_tokens, logprobs

    def take(self, logits: npt.NDArray[np.float32], *, full: bool) -> GeneratedToken:
        """Returns the next token.

        Args:
            logits: [V], after the last of ``tokens``.
            full: whether the cache has no place for the new token, which is then the last one.

        Raises:
            SessionError: the logits are not finite.
        """
        token = self._sampler.choose(logits, self.tokens)
        logarithms = log_softmax(logits)
        self.tokens.append(token)
        reason, text = None, ""
        if token in self._eos:
            reason = "eos"
        elif token in self._stop_tokens:
            reason = "stop"
        elif self._decoder is not None:
            text, stopped = self._matcher.add(self._decoder.add(token))
            if stopped:
                self.finished = True
                return self._token(token, text, logarithms, "stop")
        if reason is None and (len(self.tokens) == self._most or full):
            reason = "length"
        if reason is not None and self._decoder is not None:
            rest, stopped = self._matcher.add(self._decoder.flush())
            text += rest + ("" if stopped else self._matcher.flush())
        self.finished = reason is not None
        return self._token(token, text, logarithms, reason)

    def _token(
        self, token: int, text: str, logarithms: npt.NDArray[np.float64], reason: str | None
    ) -> GeneratedToken:
        best: tuple[TokenLogprob, ...] = ()
        if self._logprobs:
            likely = top_k_tokens(logarithms, self._logprobs)
            best = tuple(TokenLogprob(int(other), float(logarithms[other])) for other in likely)
        return GeneratedToken(token, text, float(logarithms[token]), reason, best)
