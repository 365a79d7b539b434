"""The calls that continue texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from minicache.runtime import checks, generation
from minicache.runtime.errors import SessionError
from minicache.runtime.generate_options import GenerateOptions, Prompt
from minicache.runtime.generated_token import GeneratedToken
from minicache.runtime.row_calls import RowCalls
from minicache.runtime.verification import Verification, greedy_agreement

if TYPE_CHECKING:
    from typing_extensions import Unpack


class TextCalls(RowCalls):
    """Generation, of one row, and its speculative form."""

    def generate(
        self, prompt: Prompt, max_new_tokens: int, **options: Unpack[GenerateOptions]
    ) -> Iterator[GeneratedToken]:
        """Resets the row, reads the prompt and yields new tokens as they come.

        Args:
            prompt: a text; token ids; or, with ``chat``, messages with ``role`` and ``content``.
            max_new_tokens: at most so many.
            options: see ``GenerateOptions``; the default is greedy.

        Raises:
            MiniCacheError: as ``minicache.runtime.generation.generate``.
        """
        return generation.generate(self, prompt, max_new_tokens, options)

    def verify(self, tokens: npt.ArrayLike, lengths: npt.ArrayLike | None = None) -> Verification:
        """Appends proposed tokens as far as the model would have chosen them itself (greedily).

        Each row gives the token that was chosen last, which is not in the cache yet, and k proposed
        ones after it. One call of the model computes all of them; what is not accepted is taken
        back by ``rewind``. The cache then holds the first token and the accepted ones, and the
        next call begins with ``next_tokens``.

        Args:
            tokens: integers [B, 1 + k], or [1 + k] for one row; shorter rows padded on the right.
            lengths: [B] valid tokens per row; None: 1 + k for every row.

        Raises:
            SessionError: as ``forward``; or more proposed tokens than the export's rewind slack; or
                logits that are not finite. Nothing has changed.
            CapacityError: a row would exceed the capacity; nothing has changed.
        """
        session = self.session
        given = np.asarray(tokens)
        given = given[None] if given.ndim == 1 and self.batch_size == 1 else given
        ids, new = checks.token_ids(given, lengths, self.batch_size, session.manifest.vocab_size)
        slack = session._rewind.slack
        proposed = int(new.max()) - 1
        if slack is not None and proposed > slack:
            raise SessionError(
                f"{proposed} proposed tokens could not be taken back: the export's rewind slack is "
                f"{slack}; propose at most {slack}"
            )
        logits = self.forward(ids, new)
        if not np.isfinite(logits).all():
            self.rewind(new)
            raise SessionError(
                "the logits are not finite: the model computed nothing useful; check the export "
                "with minicache evaluate"
            )
        result = greedy_agreement(ids, new, logits.argmax(axis=2))
        self.rewind(np.maximum(new - 1 - result.accepted, 0))
        return result
