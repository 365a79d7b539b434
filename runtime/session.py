"""What users call: a session runs an exported folder and owns its cache.

Use it as::

    with Session("out/") as session:
        for token in session.generate("Once upon a time", max_new_tokens=40):
            print(token.text, end="", flush=True)

Letters: B batch, S new tokens of a call, K positions with logits, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from minicache.runtime import checks, generation, prefill
from minicache.runtime.errors import SessionError
from minicache.runtime.generation import GeneratedToken, GenerateOptions, GenerationStats, Prompt
from minicache.runtime.open_model import OpenModel
from minicache.runtime.rewind import RewindGuard

if TYPE_CHECKING:
    from typing_extensions import Unpack

Logits = Literal["all", "last"]
PREFILL_CHUNK = 512


class Session(OpenModel):
    """Runs an exported folder; the cache is allocated once and updated in place.

    A session is for one thread at a time; sessions are independent of each other.

    Args:
        folder: what ``minicache-export`` wrote.
        batch_size: rows B that run side by side.
        max_sequence_length: tokens per row to allocate for; None: the model's maximum. Memory is
            committed by the system as rows grow into it.
        threads: CPU threads inside one operator; None: ONNX Runtime's choice. TensorRT uses none.
        providers: ONNX Runtime's execution providers; None: those of the export's target.

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
        threads: int | None = None,
        providers: Sequence[str] | None = None,
    ) -> None:
        super().__init__(
            folder,
            batch_size=batch_size,
            max_sequence_length=max_sequence_length,
            threads=threads,
            providers=providers,
        )
        self._rewind = RewindGuard(self.manifest, batch_size)
        self.last_stats: GenerationStats | None = None

    def forward(
        self,
        input_ids: npt.ArrayLike,
        lengths: npt.ArrayLike | None = None,
        logits: Logits | None = "all",
        out: npt.NDArray[np.float32] | None = None,
    ) -> npt.NDArray[np.float32]:
        """Appends tokens to the cache and returns their logits.

        Args:
            input_ids: integers [B, S]; shorter rows are padded on the right with anything.
            lengths: [B] valid new tokens per row, 0..S; None: S for every row.
            logits: ``all`` new tokens, the ``last`` valid one of each row, or None to skip them.
            out: array to fill instead of a new one; of the result's shape, C-contiguous.

        Returns:
            float32 [B, S, V] (``last``: [B, 1, V]; None: [B, 0, V]), the caller's to keep; padding
            and rows without new tokens are zero.

        Raises:
            SessionError: wrong shape, type or range; more tokens than an engine takes in one call;
                closed; or running in another thread.
            CapacityError: a row would exceed the capacity; nothing has changed.
        """
        if logits not in ("all", "last", None):
            raise SessionError(f'logits is {logits!r}; give "all", "last" or None')
        ids, new = checks.token_ids(input_ids, lengths, self.batch_size, self.manifest.vocab_size)
        # The graph computes at least one position per row, also when nobody wants it.
        positions = np.maximum(new - 1, 0).astype(np.int64)[:, None]
        if logits == "all":
            positions = np.tile(np.arange(ids.shape[1], dtype=np.int64), (self.batch_size, 1))
        shape = (*positions.shape, self.manifest.vocab_size)
        if out is not None:
            checks.output_array(out, shape)
        with self._running() as model:
            checks.capacity(self._lengths, new, self.capacity, self.manifest)
            total = self._lengths + new
            control: dict[str, npt.NDArray[Any]] = {
                "input_ids": ids,
                "past_lengths": self._lengths,
                "total_lengths": total,
                "logit_positions": positions,
            }
            result = None
            if logits is not None:
                result = np.empty(shape, np.float32) if out is None else out
            model.run(control, result, shape)
            self._lengths = total
            self._rewind.advance(total)
        if result is None:
            return np.empty((self.batch_size, 0, self.manifest.vocab_size), np.float32)
        for row in np.flatnonzero(new < ids.shape[1]):
            result[row, new[row] if logits == "all" else min(int(new[row]), 1) :] = 0
        return result

    def prefill(
        self,
        input_ids: npt.ArrayLike,
        lengths: npt.ArrayLike | None = None,
        *,
        chunk: int = PREFILL_CHUNK,
        progress: Callable[[int], None] | None = None,
    ) -> npt.NDArray[np.float32]:
        """Appends a long text in chunks; tokens of one chunk see each other in full precision.

        Args:
            input_ids: integers [B, S], or [S] for a session of one row.
            lengths: [B] valid tokens per row; None: S for every row.
            chunk: tokens per call; bounds the memory of activations. A TensorRT engine may bound
                it further.
            progress: called with the number of new positions after each chunk.

        Returns:
            float32 [B, V]: the logits of each row's last token; zero for rows without tokens.

        Raises:
            SessionError: as ``forward``; nothing has changed.
            CapacityError: likewise.
        """
        checks.whole_number("chunk", chunk)
        given = np.asarray(input_ids)
        given = given[None] if given.ndim == 1 and self.batch_size == 1 else given
        ids, new = checks.token_ids(given, lengths, self.batch_size, self.manifest.vocab_size)
        checks.capacity(self._lengths, new, self.capacity, self.manifest)
        longest = chunk if self.longest_call is None else self.longest_call
        return prefill.prefill(self, ids, new, min(chunk, longest), progress)

    def generate(
        self, prompt: Prompt, max_new_tokens: int, **options: Unpack[GenerateOptions]
    ) -> Iterator[GeneratedToken]:
        """Resets the cache, reads the prompt and yields new tokens as they come.

        Args:
            prompt: a text; token ids; or, with ``chat``, messages with ``role`` and ``content``.
            max_new_tokens: at most so many.
            options: see ``GenerateOptions``; the default is greedy.

        Raises:
            MiniCacheError: as ``minicache.runtime.generation.generate``.
        """
        return generation.generate(self, prompt, max_new_tokens, **options)

    def reset(self) -> None:
        """Empties the cache; the buffers stay."""
        with self._running() as model:
            self._cache.clear()
            model.push()
            self._lengths = np.zeros_like(self._lengths)
            self._rewind.clear()

    def _restart(self, lengths: npt.NDArray[np.int32]) -> None:
        """Takes over a cache that somebody else filled with ``lengths`` [B] tokens."""
        with self._running():
            self._lengths = lengths.astype(np.int32)
            self._rewind.clear()
            self._rewind.advance(self._lengths)

    def rewind(self, count: npt.ArrayLike) -> None:
        """Takes back the last tokens, as if they had never been given.

        Exact within the export's rewind slack, counted from the longest the row has been; and
        without bound where every token keeps its own slot (``exact`` mode without windows). With
        ``minmax`` retention, tokens that came in one call with dropped ones stay retained or not as
        that call decided.

        Args:
            count: tokens to drop, one number or one per row [B].

        Raises:
            SessionError: more than the row holds, or further back than the slack; nothing changed.
        """
        with self._running():
            self._lengths = self._rewind.take_back(self._lengths, count)
