"""Which tokens the rows of a session hold: what codes no longer tell."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class TokenLog:
    """The token ids of every row, as they were given.

    Args:
        batch_size: rows B.
        capacity: tokens C per row.
    """

    def __init__(self, batch_size: int, capacity: int) -> None:
        # Committed by the system as rows grow, like the cache itself.
        self._ids = np.zeros((batch_size, capacity), np.int32)
        self._known = np.ones(batch_size, bool)

    def append(
        self,
        first: int,
        lengths: npt.NDArray[np.int32],
        ids: npt.NDArray[np.int64],
        new: npt.NDArray[np.int32],
    ) -> None:
        """Notes ``new`` [n] tokens of ``ids`` [n, S] behind ``lengths`` [n], from row ``first``."""
        for row, (start, count) in enumerate(zip(lengths, new, strict=True)):
            self._ids[first + row, start : start + count] = ids[row, :count]

    def replace(self, row: int, ids: npt.NDArray[np.int32] | None) -> None:
        """Notes what a row holds now; None: nobody knows, until it is emptied."""
        self._known[row] = ids is not None
        if ids is not None:
            self._ids[row, : len(ids)] = ids

    def clear(self, rows: slice) -> None:
        """Forgets rows: they were emptied."""
        self._known[rows] = True

    def read(self, row: int, length: int) -> npt.NDArray[np.int32] | None:
        """The first ``length`` tokens of a row, a copy; None where nobody knows them."""
        return self._ids[row, :length].copy() if self._known[row] else None
