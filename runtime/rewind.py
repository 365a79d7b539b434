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
    """

    def __init__(self, manifest: Manifest, batch_size: int) -> None:
        exact = [state for state in manifest.state if state.name.startswith("exact_")]
        ringless = all(CAPACITY in state.shape for state in exact)
        self._slack: int | None = None if ringless else manifest.rewind_slack
        self._furthest = np.zeros(batch_size, np.int32)

    def advance(self, lengths: npt.NDArray[np.int32]) -> None:
        """Notes that the rows were written up to ``lengths`` [B]."""
        self._furthest = np.maximum(self._furthest, lengths)

    def clear(self) -> None:
        """Forgets everything: the cache was emptied."""
        self._furthest[:] = 0

    def take_back(
        self, lengths: npt.NDArray[np.int32], count: npt.ArrayLike
    ) -> npt.NDArray[np.int32]:
        """Returns the lengths [B] after dropping ``count`` tokens (one number, or [B]).

        Raises:
            SessionError: not integers of that shape, more than a row holds, or beyond the slack.
        """
        drop = np.asarray(count)
        if drop.shape not in ((), lengths.shape) or not np.issubdtype(drop.dtype, np.integer):
            raise SessionError(
                f"count is {drop.dtype} of shape {list(drop.shape)}; give one integer or "
                f"one per row [{len(lengths)}]"
            )
        drop = np.broadcast_to(drop, lengths.shape).astype(np.int64)
        for row, (length, dropped) in enumerate(zip(lengths, drop, strict=True)):
            if not 0 <= dropped <= length:
                raise SessionError(
                    f"cannot take back {dropped} tokens of row {row}: it holds {length}"
                )
            floor = 0 if self._slack is None else int(self._furthest[row]) - self._slack
            # Going back to nothing reads nothing: always exact.
            if 0 < length - dropped < floor and dropped > 0:
                raise SessionError(
                    f"cannot take back {dropped} tokens of row {row} exactly: it has been "
                    f"{self._furthest[row]} long and holds {length}, and the export's rewind "
                    f"slack is {self._slack}; take back at most {max(int(length) - floor, 0)}, "
                    "or reset()"
                )
        left: npt.NDArray[np.int32] = (lengths - drop).astype(np.int32)
        self._furthest[left == 0] = 0
        return left
