"""What users call: a session runs an exported folder and owns its cache.

Use it as::

    with Session("out/") as session:
        for token in session.generate("Once upon a time", max_new_tokens=40):
            print(token.text, end="", flush=True)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from minicache.runtime import checks
from minicache.runtime.generate_batch import Completion, generate_batch
from minicache.runtime.generate_options import GenerateOptions, Prompt
from minicache.runtime.generated_token import GeneratedToken
from minicache.runtime.open_model import OpenModel
from minicache.runtime.row_calls import PREFILL_CHUNK
from minicache.runtime.rows import Rows
from minicache.runtime.state_calls import StateCalls
from minicache.runtime.text_calls import TextCalls

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from minicache.runtime.generation import GenerationStats

__all__ = ["PREFILL_CHUNK", "Session"]


class Session(OpenModel, TextCalls, StateCalls):
    """Runs an exported folder; the cache is allocated once and updated in place.

    A session is for one thread at a time; sessions are independent of each other.

    Args:
        folder: what ``minicache-export`` wrote.
        batch_size: rows B that run side by side.
        max_sequence_length: tokens per row to allocate for; None: the model's maximum. Memory is
            committed by the system as rows grow into it.
        cache_tokens: of exports with ``--evict``: tokens that a row has room for at a time; None:
            what its policy needs. Texts may be longer.
        threads: CPU threads inside one operator; None: ONNX Runtime's choice. TensorRT uses none.
        providers: ONNX Runtime's execution providers; None: those of the export's target.
        overcommit: open the session even if not all rows can be full at once, as the caller sees
            to it that they are not (``row_bytes``). Only on the CPU, where memory is committed
            by need.
        huge_pages: move the weights, and what else the process holds, into pages of 2 MB
            (``collapse_pages``), which takes a second or more at the start and may decode
            faster in virtual machines. On CPUs only.

    Attributes:
        last_stats: counts and speeds of the last ``generate``.

    Raises:
        PackageError: the folder is incomplete, changed, or for another runtime, version or GPU.
        MissingDependencyError: the export's runtime, our library for it, or a GPU is missing.
        SessionError: an argument is out of range, or the cache does not fit into memory.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        batch_size: int = 1,
        max_sequence_length: int | None = None,
        cache_tokens: int | None = None,
        threads: int | None = None,
        providers: Sequence[str] | None = None,
        overcommit: bool = False,
        huge_pages: bool = False,
    ) -> None:
        super().__init__(
            folder,
            batch_size=batch_size,
            max_sequence_length=max_sequence_length,
            cache_tokens=cache_tokens,
            threads=threads,
            providers=providers,
            overcommit=overcommit,
            huge_pages=huge_pages,
        )
        self.last_stats: GenerationStats | None = None

    @property
    def session(self) -> Self:
        """Itself: a session is all of its rows."""
        return self

    @property
    def _rows(self) -> slice:
        return slice(0, self._cache.batch_size)

    def rows(self, first: int, end: int | None = None) -> Rows:
        """Rows of the session, to be driven on their own: a call computes these and no others.

        Args:
            first: number of the first row, from 0.
            end: one more than the number of the last row; None: one row.

        Raises:
            SessionError: no such rows.
        """
        start = checks.number_below("first", first, self.batch_size)
        if end is None:
            return Rows(self, start, start + 1)
        return Rows(
            self, start, 1 + checks.number_below("end - 1", end - 1, self.batch_size, start)
        )

    def generate_batch(
        self,
        prompts: Sequence[Prompt],
        max_new_tokens: int,
        *,
        on_token: Callable[[int, GeneratedToken], None] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> list[Completion]:
        """Resets the session and continues a list of prompts of any lengths.

        As many run side by side as there are rows; when one ends, the next one takes its row.

        Args:
            prompts: texts; token ids; or, with ``chat``, messages with ``role`` and ``content``.
            max_new_tokens: at most so many after each prompt.
            on_token: called with a prompt's place in the list and its new token, as they come.
            options: see ``GenerateOptions``; with a ``seed``, each prompt's random numbers begin
                from it.

        Returns:
            What came after each prompt, in the order of the prompts.

        Raises:
            MiniCacheError: as ``minicache.runtime.generate_batch.generate_batch``.
        """
        return generate_batch(self, prompts, max_new_tokens, on_token, options)

    def _restart(self, lengths: npt.NDArray[np.int32]) -> None:
        """Takes over a cache that somebody else filled with ``lengths`` [B] tokens."""
        with self._running():
            self._lengths[:] = lengths
            self._rewind.clear(self._rows)
            self._rewind.advance(self._rows, self._lengths)
            for row in range(self.batch_size):
                self._tokens.replace(row, None)
