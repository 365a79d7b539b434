"""What users call: a session runs an exported folder and owns its cache.

    with Session("out/") as session:
        for token in session.generate("Once upon a time", max_new_tokens=40):
            print(token.text, end="", flush=True)

Letters: B batch, S new tokens of a call, K positions with logits, V vocabulary.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from minicache.exporter import schemas
from minicache.runtime import checks, generation
from minicache.runtime.cache import Cache, round_capacity
from minicache.runtime.errors import CapacityError, PackageError, SessionError
from minicache.runtime.generation import GeneratedToken, GenerationStats
from minicache.runtime.manifest import Manifest
from minicache.runtime.ort import BoundModel, choose_providers
from minicache.runtime.retention import RetentionStats, retention_stats
from minicache.runtime.rewind import RewindGuard

if TYPE_CHECKING:
    from typing_extensions import Self

    from minicache.runtime.tokenizer import TextTokenizer

Logits = Literal["all", "last"]
PREFILL_CHUNK = 512
TOKENIZER_FILE = "tokenizer.json"


class Session:
    """Runs an exported folder; the cache is allocated once and updated in place.

    A session is for one thread at a time; sessions are independent of each other.

    Args:
        folder: what ``minicache-export`` wrote.
        batch_size: rows B that run side by side.
        max_sequence_length: tokens per row to allocate for; None: the model's maximum.
        threads: CPU threads inside one operator; None: ONNX Runtime's choice.
        providers: execution providers; None: those of the export's target.

    Raises:
        PackageError: the folder is incomplete, changed, or for another runtime or version.
        MissingDependencyError: ONNX Runtime or the op library is missing or too old.
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
        self.folder = Path(folder)
        self.manifest = Manifest.load(self.folder)
        self.last_stats: GenerationStats | None = None
        path = self._check_folder()
        limit = checks.session_size(self.manifest, batch_size, max_sequence_length, threads)
        chosen = choose_providers(self.manifest.target, providers)
        self._cache = Cache(self.manifest, batch_size, round_capacity(limit))
        # The buffers may hold a few tokens more than the model's position tables reach.
        self.capacity = min(self._cache.capacity, self.manifest.max_sequence_length)
        self._model: BoundModel | None = BoundModel(path, self._cache, threads, chosen)
        self._lengths = np.zeros(batch_size, np.int32)
        self._rewind = RewindGuard(self.manifest, batch_size)
        self._scratch = np.zeros(0, self._model.logits_dtype)
        self._lock = threading.Lock()
        self._tokenizer: TextTokenizer | None = None

    def _check_folder(self) -> Path:
        path = self.folder / self.manifest.model
        if not path.is_file():
            raise PackageError(
                f"{str(self.folder)!r} lacks {self.manifest.model!r}, which its manifest names; "
                "copy the whole folder or export again"
            )
        if self.manifest.op_version != schemas.VERSION:
            raise PackageError(
                f"{str(self.folder)!r} needs {schemas.OP_TYPE} version {self.manifest.op_version}, "
                f"this installation has {schemas.VERSION}; export again or install the version that wrote it"
            )
        return path

    @property
    def batch_size(self) -> int:
        """Rows B."""
        return self._cache.batch_size

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """Tokens in the cache per row, int32 [B]; a copy."""
        return self._lengths.copy()

    @property
    def cache_bytes(self) -> int:
        """Bytes of the state buffers, as allocated."""
        return self._cache.nbytes

    @property
    def tokenizer(self) -> TextTokenizer:
        """The folder's tokenizer, loaded on first use.

        Raises:
            PackageError: the folder holds no ``tokenizer.json``.
        """
        if self._tokenizer is None:
            from minicache.runtime.tokenizer import TextTokenizer

            self._tokenizer = TextTokenizer(self.folder, self.manifest.bos_token_id)
        return self._tokenizer

    @property
    def has_tokenizer(self) -> bool:
        """Whether the folder holds a tokenizer; without one, generation gives token ids only."""
        return (self.folder / TOKENIZER_FILE).is_file()

    def forward(
        self,
        input_ids: npt.ArrayLike,
        lengths: npt.ArrayLike | None = None,
        logits: Logits | None = "all",
        out: npt.NDArray[np.float32] | None = None,
    ) -> npt.NDArray[np.float32] | None:
        """Appends tokens to the cache and returns their logits.

        Args:
            input_ids: integers [B, S]; shorter rows are padded on the right with anything.
            lengths: [B] valid new tokens per row, 0..S; None: S for every row.
            logits: ``all`` new tokens, the ``last`` valid one of each row, or None to skip them.
            out: array to fill instead of a new one; of the result's shape, C-contiguous.

        Returns:
            float32 [B, S, V] (``last``: [B, 1, V]), the caller's to keep; padding and rows without
            new tokens are zero. None when no logits are asked for.

        Raises:
            SessionError: wrong shape, type or range; closed; or running in another thread.
            CapacityError: a row would exceed the capacity; nothing has changed.
        """
        if logits not in ("all", "last", None):
            raise SessionError(f'logits is {logits!r}; give "all", "last" or None')
        ids, new = checks.token_ids(input_ids, lengths, self.batch_size, self.manifest.vocab_size)
        positions = np.maximum(new - 1, 0).astype(np.int64)[:, None]
        if logits == "all":
            positions = np.tile(np.arange(ids.shape[1], dtype=np.int64), (self.batch_size, 1))
        shape = (*positions.shape, self.manifest.vocab_size)
        if out is not None:
            checks.output_array(out, shape)
        with self._running() as model:
            self._check_capacity(new)
            total = self._lengths + new
            control = {"input_ids": ids, "past_lengths": self._lengths, "total_lengths": total}
            control["logit_positions"] = positions
            result = self._run(model, control, shape, out, wanted=logits is not None)
            self._lengths = total
            self._rewind.advance(total)
        if logits is None:
            return None
        for row in np.flatnonzero(new < ids.shape[1]):
            result[row, new[row] if logits == "all" else min(int(new[row]), 1) :] = 0
        return result

    def _run(
        self,
        model: BoundModel,
        control: dict[str, npt.NDArray[Any]],
        shape: tuple[int, ...],
        out: npt.NDArray[np.float32] | None,
        *,
        wanted: bool,
    ) -> npt.NDArray[np.float32]:
        # ONNX Runtime writes fp32 logits straight into the result; other ones pass through a scratch.
        if wanted and model.logits_dtype == np.float32:
            result = np.empty(shape, np.float32) if out is None else out
            model.run(control, result)
            return result
        if self._scratch.shape != shape:
            self._scratch = np.empty(shape, model.logits_dtype)
        model.run(control, self._scratch)
        if not wanted:
            return np.empty(0, np.float32)
        result = np.empty(shape, np.float32) if out is None else out
        result[...] = self._scratch
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
            chunk: tokens per call; bounds the memory of activations.
            progress: called with the number of new positions after each chunk.

        Returns:
            float32 [B, V]: the logits of each row's last token; zero for rows without tokens.

        Raises:
            SessionError, CapacityError: as ``forward``; nothing has changed.
        """
        if chunk < 1:
            raise SessionError(f"chunk is {chunk}; give at least 1 token")
        given = np.asarray(input_ids)
        given = given[None] if given.ndim == 1 and self.batch_size == 1 else given
        ids, new = checks.token_ids(given, lengths, self.batch_size, self.manifest.vocab_size)
        self._check_capacity(new)
        last = np.zeros((self.batch_size, self.manifest.vocab_size), np.float32)
        for start in range(0, ids.shape[1], chunk):
            part = ids[:, start : start + chunk]
            counts = np.clip(new - start, 0, part.shape[1])
            ends = (counts > 0) & (new <= start + part.shape[1])
            result = self.forward(part, counts, logits="last" if ends.any() else None)
            if result is not None:
                last[ends] = result[ends, 0]
            if progress is not None:
                progress(part.shape[1])
        return last

    def generate(
        self,
        prompt: str | Sequence[int] | Sequence[Mapping[str, str]],
        max_new_tokens: int,
        **options: Any,
    ) -> Iterator[GeneratedToken]:
        """Resets the cache, reads the prompt and yields new tokens as they come.

        See ``minicache.runtime.generation.generate`` for the options; ``last_stats`` holds the
        speeds afterwards.
        """
        return generation.generate(self, prompt, max_new_tokens, **options)

    def reset(self) -> None:
        """Empties the cache; the buffers stay."""
        with self._running() as model:
            model.upload(self._cache.clear())
            self._lengths = np.zeros_like(self._lengths)
            self._rewind.clear()

    def rewind(self, count: npt.ArrayLike) -> None:
        """Takes back the last tokens, as if they had never been given.

        Exact within the export's rewind slack, counted from the longest the row has been; and
        without bound where every token keeps its own slot (``exact`` mode without windows). With
        ``minmax`` or ``budget`` retention, which tokens are retained may still show what was dropped.

        Args:
            count: tokens to drop, one number or one per row [B].

        Raises:
            SessionError: more than the row holds, or further back than the slack; nothing changed.
        """
        with self._running():
            self._lengths = self._rewind.take_back(self._lengths, count)

    def cache_tensors(self) -> dict[str, npt.NDArray[Any]]:
        """Read-only views of the state buffers by graph input name, for inspection (no copies)."""
        with self._running() as model:
            model.download()
            return self._cache.views()

    def state_pointers(self) -> dict[str, tuple[int, int]]:
        """Addresses of each state's input and output in the last call: equal, as it is in place."""
        with self._running() as model:
            return model.state_pointers()

    def retention_stats(self) -> list[RetentionStats]:
        """Retained and merged tokens of each coded group, over all rows."""
        with self._running() as model:
            model.download()
            return retention_stats(self.manifest, self._cache, self._lengths)

    def close(self) -> None:
        """Frees the model and the cache; further calls raise ``SessionError``."""
        with self._running():
            self._model = None
            self._cache.arrays.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._model is not None:
            self.close()

    @contextmanager
    def _running(self) -> Iterator[BoundModel]:
        # Waiting would hide that two threads interleave their tokens in one cache.
        if not self._lock.acquire(blocking=False):
            raise SessionError(
                "the session is running in another thread; give each thread its own session"
            )
        try:
            if self._model is None:
                raise SessionError("the session is closed; open a new one")
            yield self._model
        finally:
            self._lock.release()

    def _check_capacity(self, new: npt.NDArray[np.int32]) -> None:
        total = self._lengths.astype(np.int64) + new
        if (total <= self.capacity).all():
            return
        row = int(np.argmax(total > self.capacity))
        raise CapacityError(
            f"row {row} holds {self._lengths[row]} tokens and {new[row]} more do not fit into its "
            f"capacity of {self.capacity}; give fewer tokens, reset(), or open the session with a larger "
            f"max_sequence_length (this model: up to {self.manifest.max_sequence_length})"
        )
