"""What quality benchmarks run: the original, real exports, and simulated cache codecs.

All of them are read alike: ``start`` reads a prefill in one call, ``forward`` appends tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from minicache.exporter.baselines.cache_codec import CacheCodec
from minicache.exporter.baselines.exact_cache import Array, ExactCache
from minicache.exporter.baselines.exact_vectors import exact_vectors
from minicache.exporter.baselines.prefill_snapshot import PrefillSnapshot
from minicache.exporter.baselines.simulated_cache import SimulatedCache
from minicache.runtime.session import Session

Logits = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


class Model(Protocol):
    """Reads texts."""

    def start(self, ids: Ids) -> Logits:
        """Reads a prefill ``[P]`` into the empty cache in one call; last logits ``[1, V]``."""
        ...

    def forward(self, input_ids: Ids) -> Logits:
        """Appends tokens ``[1, S]``; returns ``[1, S, V]``."""
        ...


class Original:
    """The original model, as its exact-mode export; baselines share its session and prefills."""

    def __init__(self, folder: Path, capacity: int, threads: int | None) -> None:
        self.session = Session(folder, max_sequence_length=capacity, threads=threads)
        self.cache = ExactCache(self.session)
        self._plain = SimulatedCache(self.cache, None)
        self._last: PrefillSnapshot | None = None

    def snapshot(self, ids: Ids) -> PrefillSnapshot:
        """The prefill of ``ids``; the last one is kept."""
        if self._last is None or not np.array_equal(self._last.ids, ids):
            self._last = PrefillSnapshot.take(self.cache, ids)
        return self._last

    def vectors(
        self, documents: Sequence[Sequence[int]], sinks: int
    ) -> tuple[list[Array], list[Array]]:
        """Keys and values of documents, see ``exact_vectors``."""
        self._last = None  # the session is used for another text
        return exact_vectors(self.cache, documents, sinks)

    def start(self, ids: Ids) -> Logits:
        """See ``Model``."""
        return self._plain.start(self.snapshot(ids))

    def forward(self, input_ids: Ids) -> Logits:
        """See ``Model``."""
        return self._plain.forward(input_ids)


class Exported:
    """A real export with its kernels."""

    def __init__(self, folder: Path, capacity: int, threads: int | None) -> None:
        self._session = Session(folder, max_sequence_length=capacity, threads=threads)

    def start(self, ids: Ids) -> Logits:
        """See ``Model``."""
        self._session.reset()
        return self._session.prefill(ids, chunk=len(ids))

    def forward(self, input_ids: Ids) -> Logits:
        """See ``Model``."""
        return self._session.forward(input_ids)


class Baseline:
    """A simulated codec on the original's session."""

    def __init__(self, original: Original, codec: CacheCodec) -> None:
        self._original = original
        self._simulated = SimulatedCache(original.cache, codec)

    def start(self, ids: Ids) -> Logits:
        """See ``Model``."""
        return self._simulated.start(self._original.snapshot(ids))

    def forward(self, input_ids: Ids) -> Logits:
        """See ``Model``."""
        return self._simulated.forward(input_ids)
