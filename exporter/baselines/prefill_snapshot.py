"""The exact cache of a prefill, kept so that many codecs start from the same one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.exporter.baselines.exact_cache import ExactCache
from minicache.runtime.errors import SessionError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class PrefillSnapshot:
    """What an exact session holds after a prefill of P tokens.

    Attributes:
        ids: the tokens, int64 ``[P]``.
        logits: of the last one, fp32 ``[1, V]``.
        keys: by layer, ``[Hk, P, D]`` of the model's type.
        values: likewise.
    """

    ids: npt.NDArray[np.int64]
    logits: npt.NDArray[np.float32]
    keys: list[Array]
    values: list[Array]

    @staticmethod
    def take(cache: ExactCache, ids: npt.ArrayLike) -> PrefillSnapshot:
        """Empties the session, reads ``ids`` ``[P]`` in one call, and copies its cache.

        Raises:
            SessionError: the tokens are not a list of ids.
            CapacityError: they do not fit.
        """
        given = np.asarray(ids)
        cache.session.reset()
        logits = cache.session.prefill(given, chunk=max(given.size, 1))
        return PrefillSnapshot(given.astype(np.int64), logits, *cache.read(0, cache.length))

    def restore(self, cache: ExactCache) -> None:
        """Brings the session back to the end of the prefill.

        Raises:
            SessionError: the session holds fewer tokens than the snapshot.
        """
        if cache.length < len(self.ids):
            raise SessionError(
                f"the session holds {cache.length} tokens, the snapshot {len(self.ids)}: the "
                "session was reset since; take a new snapshot"
            )
        cache.session.rewind(cache.length - len(self.ids))
        cache.write(self.keys, self.values, 0)
