"""The exact cache of a prefill, kept so that many codecs start from the same one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.exporter.baselines.exact_cache import ExactCache

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class PrefillSnapshot:
    """What an exact session holds after a prefill of P tokens.

    Attributes:
        ids: the tokens, int64 ``[P]``.
        logits: of the last one, fp32 ``[1, V]``.
        keys: by layer of full attention, ``[Hk, P, D]`` of the model's type.
        values: likewise.
        rings: of the other layers, whole.
    """

    ids: npt.NDArray[np.int64]
    logits: npt.NDArray[np.float32]
    keys: list[Array]
    values: list[Array]
    rings: list[Array]

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
        kept = *cache.read(0, cache.length), cache.read_rings()
        return PrefillSnapshot(given.astype(np.int64), logits, *kept)

    def restore(self, cache: ExactCache) -> None:
        """Brings the session back to the end of the prefill, whatever it did since."""
        cache.restore(self.keys, self.values, self.rings)
