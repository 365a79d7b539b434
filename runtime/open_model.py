"""An exported folder, opened: its graph, the cache it writes into, and views of that cache."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from minicache.runtime import checks
from minicache.runtime.binding import BoundModel
from minicache.runtime.cache import Cache
from minicache.runtime.device_binding import DeviceModel
from minicache.runtime.errors import CapacityError, SessionError, StateFileError
from minicache.runtime.eviction.evictor import Evictor
from minicache.runtime.eviction.size import slots_per_row
from minicache.runtime.huge_pages import collapse_pages
from minicache.runtime.manifest import Manifest
from minicache.runtime.memory_guard import available_bytes, check_room
from minicache.runtime.model import Model
from minicache.runtime.model_digest import model_digest
from minicache.runtime.open_engine import TARGET, open_engine
from minicache.runtime.ort import CUDA, choose_providers, open_graph
from minicache.runtime.retention import RetentionStats, retention_stats
from minicache.runtime.rewind import RewindGuard
from minicache.runtime.row_state import RowState, check_row
from minicache.runtime.token_log import TokenLog
from minicache.runtime.used_slots import used_elements

if TYPE_CHECKING:
    from typing_extensions import Self

    from minicache.runtime.tokenizer import TextTokenizer

TOKENIZER_FILE = "tokenizer.json"


class OpenModel:
    """What a ``Session`` is, short of running it; see there for arguments and errors.

    Attributes:
        folder: what ``minicache-export`` wrote.
        manifest: its ``minicache.json``.
        capacity: tokens that a row can hold, evicted ones included.
        longest_call: new tokens per row that one call takes; None: any number.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        batch_size: int,
        max_sequence_length: int | None,
        cache_tokens: int | None,
        threads: int | None,
        providers: Sequence[str] | None,
        overcommit: bool,
        huge_pages: bool,
    ) -> None:
        self.folder = Path(folder)
        self.manifest = Manifest.load(self.folder)
        self.longest_call: int | None = None
        self._on_device = self.manifest.target == TARGET
        self._huge_pages = huge_pages
        opened = self._engine(providers) if self._on_device else self._graph(threads, providers)
        limit = checks.session_size(self.manifest, batch_size, max_sequence_length, threads)
        slots = slots_per_row(self.manifest, limit, cache_tokens)
        room = None if self._on_device or overcommit else available_bytes()
        check_room(self.manifest, int(batch_size), slots, room)
        self._cache = Cache(self.manifest, int(batch_size), slots)
        # The buffers may hold a few tokens more than the model's position tables reach.
        self.capacity = min(slots, self.manifest.max_sequence_length)
        self._evictor: Evictor | None = None
        if self.manifest.eviction:
            self.capacity = limit
            self._evictor = Evictor(self.manifest, self._cache)
            if slots < limit:
                engine, room = self.longest_call, self._evictor.longest_call
                self.longest_call = room if engine is None else min(engine, room)
        self._model: Model | None = opened(self._cache)
        self._lengths = np.zeros(batch_size, np.int32)
        self._rewind = RewindGuard(self.manifest, int(batch_size))
        self._tokens = TokenLog(int(batch_size), max(self.capacity, slots))
        self._lock = threading.Lock()
        self._tokenizer: TextTokenizer | None = None

    def _graph(
        self, threads: int | None, providers: Sequence[str] | None
    ) -> Callable[[Cache], Model]:
        path = checks.package(self.folder, self.manifest)
        chosen = choose_providers(self.manifest.target, providers)
        on_device = self._on_device = CUDA in chosen
        kernels = checks.kernel_pack(self.folder) if on_device else None

        def opened(cache: Cache) -> Model:
            graph = open_graph(path, None if threads is None else int(threads), chosen, kernels)
            if self._huge_pages and not on_device:
                collapse_pages()
            return (DeviceModel if on_device else BoundModel)(graph, cache, path)

        return opened

    def _engine(self, providers: Sequence[str] | None) -> Callable[[Cache], Model]:
        file = checks.engine(self.folder, self.manifest, providers)
        self.longest_call = file.largest().tokens
        return functools.partial(open_engine, self.folder, file)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the state buffers, as allocated."""
        return self._cache.nbytes

    def row_bytes(self, tokens: int) -> int:
        """Bytes of the state that a row of ``tokens`` tokens takes up.

        The system commits memory in pages, so that a process may hold a little more.

        Raises:
            SessionError: no number from 0 to the capacity.
        """
        checks.number_below("tokens", tokens, self.capacity + 1)
        return sum(
            array.itemsize
            * used_elements(self._cache.states[past], array.shape, tokens, self.manifest.window)
            for past, array in self._cache.arrays.items()
        )

    @functools.cached_property
    def model_digest(self) -> str:
        """What tells this export's caches from another's, in hex; reads some of the folder.

        Raises:
            PackageError: a file cannot be read.
        """
        return model_digest(self.folder, self.manifest)

    def check_state(self, state: RowState) -> dict[str, npt.NDArray[Any]]:
        """Checks that a row of this session can take a state; returns its tensors as they go there.

        Raises:
            StateFileError: it is another model's, or does not fit.
            CapacityError: it holds more tokens than a row does.
        """
        if state.model != self.model_digest:
            raise StateFileError(
                f"the state was computed by another model or plan than {str(self.folder)!r} "
                f"({state.model[:12]!r}, here {self.model_digest[:12]!r}); save it again with it"
            )
        if state.length > self.capacity:
            raise CapacityError(
                f"the state holds {state.length} tokens, a row of this session {self.capacity}; "
                "open it with a larger max_sequence_length"
            )
        if (
            state.token_ids is not None
            and not ((state.token_ids >= 0) & (state.token_ids < self.manifest.vocab_size)).all()
        ):
            raise StateFileError("the state names tokens that the model lacks; save it again")
        return check_row(self._cache, state, self.manifest.window)

    @property
    def has_tokenizer(self) -> bool:
        """Whether the folder holds a tokenizer; without one, generation gives token ids only."""
        return (self.folder / TOKENIZER_FILE).is_file()

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

    def cache_tensors(self) -> dict[str, npt.NDArray[Any]]:
        """Read-only views of the state buffers by graph input name, for inspection.

        On a GPU they are a copy, as of this call.
        """
        with self._running() as model:
            model.pull(slice(0, self._cache.batch_size))
            return self._cache.views()

    def state_pointers(self) -> dict[str, tuple[int, int]]:
        """Addresses of each state's buffer and of its output in the last call.

        They are equal: the kernels write in place.
        """
        with self._running() as model:
            return model.state_pointers()

    def retention_stats(self) -> list[RetentionStats]:
        """Retained and merged tokens of each coded group, over all rows."""
        with self._running() as model:
            model.pull(slice(0, self._cache.batch_size))
            return retention_stats(self.manifest, self._cache, self._lengths)

    def close(self) -> None:
        """Frees the model and the cache; further calls raise ``SessionError``."""
        with self._running() as model:
            model.close()
            self._model = None
            self._cache.close()

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
    def _running(self) -> Iterator[Model]:
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
