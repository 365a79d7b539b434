"""Runs a model with a cache codec that has no kernels: exact attention over restored tokens."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from minicache.exporter.baselines.cache_codec import CacheCodec
from minicache.exporter.baselines.exact_cache import ExactCache
from minicache.exporter.baselines.prefill_snapshot import PrefillSnapshot


class SimulatedCache:
    """An exact session whose tokens are replaced by what a codec would read back of them.

    After each call, the tokens that left the codec's exact part are overwritten; the next call
    reads them so. Within a call tokens read each other exactly. That is how an export of ours
    works. A codec without an exact part would read even the call's own tokens through their codes
    (ONNX Runtime's static integers do), so here it looks a little better than it is: by the whole
    prefill, and by up to S - 1 recent tokens and itself for each token of a call of S.

    Only layers of full attention are coded, with every codec. The rings of sliding-window layers
    stay exact, as an export of ours leaves them.

    Several simulations may share one ``ExactCache``, one after the other: each begins with
    ``prefill`` or ``start``.

    Args:
        cache: of an exact session.
        codec: what becomes of the tokens; None: they stay as they are.
    """

    def __init__(self, cache: ExactCache, codec: CacheCodec | None) -> None:
        self._cache, self._codec = cache, codec
        self._coded = 0

    def prefill(self, ids: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Reads a text ``[P]`` into the empty cache in one exact call.

        Returns:
            float32 ``[1, V]``: logits of the last token.

        Raises:
            SessionError: the tokens are not a list of ids.
            CapacityError: they do not fit.
        """
        snapshot = PrefillSnapshot.take(self._cache, ids)
        return self._begin(snapshot)

    def start(self, snapshot: PrefillSnapshot) -> npt.NDArray[np.float32]:
        """Goes back to a prefill that was taken from the same session; returns as ``prefill``."""
        snapshot.restore(self._cache)
        return self._begin(snapshot)

    def forward(self, input_ids: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Appends tokens ``[1, S]``; returns their logits, float32 ``[1, S, V]``.

        Raises:
            SessionError: as ``Session.forward``.
            CapacityError: likewise.
        """
        logits = self._cache.session.forward(input_ids)
        self._code_new()
        return logits

    def _begin(self, snapshot: PrefillSnapshot) -> npt.NDArray[np.float32]:
        self._coded = 0 if self._codec is None else self._codec.sinks
        self._code_new()
        return snapshot.logits.copy()

    def _code_new(self) -> None:
        if self._codec is None:
            return
        end = self._codec.coded_end(self._cache.length)
        if end <= self._coded:
            return
        exact = self._cache.read(self._coded, end)
        self._cache.write(*self._codec.rewrite(*exact, self._coded), self._coded)
        self._coded = end
