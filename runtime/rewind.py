"""How far back a row can go without a difference to a run that never had the dropped tokens."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from minicache.runtime.errors import SessionError
from minicache.runtime.manifest import CAPACITY, Manifest


class RewindGuard:
    """Remembers per row how far its ring was written.

    The ring of W + X slots holds the last W + X positions ever written, so a row may go back to X
    tokens before the furthest one, however it came to its present length.

    Args:
        manifest: of the exported folder.
        batch_size: rows B.

    Attributes:
        slack: tokens X; None: every token keeps its own slot, there is no bound.
    """

    def __init__(self, manifest: Manifest, batch_size: int) -> None:
        exact = [state for state in manifest.state if state.name.startswith("exact_")]
        ringless = all(CAPACITY in state.shape for state in exact)
        unbounded = ringless and not manifest.eviction
        self.slack: int | None = None if unbounded else manifest.rewind_slack
        self._furthest = np.zeros(batch_size, np.int32)

    def advance(self, rows: slice, lengths: npt.NDArray[np.int32]) -> None:
        """Notes that rows were written up to ``lengths`` [n]."""
        self._furthest[rows] = np.maximum(self._furthest[rows], lengths)

    def clear(self, rows: slice) -> None:
        """Forgets rows: they were emptied."""
        self._furthest[rows] = 0

    def furthest(self, row: int) -> int:
        """Tokens up to which a row was written, dropped ones included."""
        return int(self._furthest[row])

    def replace(self, row: int, furthest: int) -> None:
        """Notes that a row was replaced by one that has been ``furthest`` long."""
        self._furthest[row] = furthest

    def beyond(
        self, rows: slice, lengths: npt.NDArray[np.int32], drop: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Which rows [n] cannot drop ``drop`` [n] tokens of ``lengths`` [n] exactly."""
        left = lengths - drop
        # Going back to nothing reads nothing: always exact.
        return np.asarray((left > 0) & (left < self._floors(rows)) & (drop > 0))

    def _floors(self, rows: slice) -> npt.NDArray[np.int32]:
        if self.slack is None:
            return np.zeros_like(self._furthest[rows])
        floors: npt.NDArray[np.int32] = np.maximum(self._furthest[rows] - self.slack, 0)
        return floors

    def take_back(
        self, rows: slice, lengths: npt.NDArray[np.int32], drop: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int32]:
        """Returns the lengths [n] of rows after dropping ``drop`` [n] tokens of ``lengths`` [n].

        Raises:
            SessionError: beyond the slack.
        """
        left: npt.NDArray[np.int32] = (lengths - drop).astype(np.int32)
        beyond = self.beyond(rows, lengths, drop)
        if beyond.any():
            row = int(np.argmax(beyond))
            most = max(int(lengths[row] - self._floors(rows)[row]), 0)
            raise SessionError(
                f"cannot take back {drop[row]} tokens of row {rows.start + row} exactly: it has "
                f"been {self.furthest(rows.start + row)} long and holds {lengths[row]}, and the "
                f"export's rewind slack is {self.slack}; take back at most {most}, give "
                "refill=True to read the rest again, or reset()"
            )
        self._furthest[rows][left == 0] = 0
        return left


def dropped(
    rows: slice, lengths: npt.NDArray[np.int32], count: npt.ArrayLike
) -> npt.NDArray[np.int64]:
    """Returns how many tokens each row drops, int64 [n].

    Args:
        rows: whose.
        lengths: [n] tokens that they hold.
        count: one number, or [n].

    Raises:
        SessionError: not integers of that shape, or more than a row holds.
    """
    drop = np.asarray(count)
    if drop.shape not in ((), lengths.shape) or not np.issubdtype(drop.dtype, np.integer):
        raise SessionError(
            f"count is {drop.dtype} of shape {list(drop.shape)}; give one integer or "
            f"one per row [{len(lengths)}]"
        )
    drop = np.broadcast_to(drop, lengths.shape).astype(np.int64)
    for row, (length, wanted) in enumerate(zip(lengths, drop, strict=True), rows.start):
        if not 0 <= wanted <= length:
            raise SessionError(f"cannot take back {wanted} tokens of row {row}: it holds {length}")
    return drop
