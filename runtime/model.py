"""What a session drives: a graph or an engine whose state is updated in place, wherever it lies.

``binding`` runs on ONNX Runtime, ``device_binding`` likewise on a GPU, ``tensorrt_model`` on
TensorRT. Letters: B batch, K positions with logits, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from minicache.runtime.errors import SessionError
from minicache.runtime.eviction.slot_move import SlotMove


class Model(Protocol):
    """One opened model with its cache; the cache's arrays are what the host sees of it."""

    def run(
        self,
        control: dict[str, npt.NDArray[Any]],
        logits: npt.NDArray[np.float32] | None,
        shape: tuple[int, ...],
        first: int = 0,
    ) -> None:
        """Runs the model once, on all rows or on some contiguous ones.

        Args:
            control: the arrays named in ``signature.CONTROL_INPUTS``, of B rows.
            logits: [B, K, V] to fill, C-contiguous; None when nobody wants them.
            shape: B, K, V.
            first: row of the cache with which the B rows begin.

        Raises:
            SessionError: the call was refused or failed.
        """

    def needs_all_rows(self, tokens: int) -> bool:
        """Whether a call of ``tokens`` new tokens per row must run on all rows of the cache."""

    def push(self, rows: slice, states: Collection[str] | None = None) -> None:
        """Brings rows of the cache's arrays to the kernels.

        Args:
            rows: contiguous ones.
            states: which, by graph input name; None: all. An empty row needs ``Cache.marks`` alone:
                everything else is written before it is read.

        Raises:
            SessionError: the device refused the copy; the rows then hold anything.
        """

    def pull(self, rows: slice, states: Collection[str] | None = None) -> None:
        """Brings rows of the cache's arrays up to date.

        Args:
            rows: contiguous ones.
            states: which, by graph input name; None: all.

        Raises:
            SessionError: the device refused the copy.
        """

    def move_slots(self, past: str, row: int, move: SlotMove) -> None:
        """Moves slots of one row, where the kernels have them; elsewhere the host's array is stale.

        Args:
            past: graph input name of a state whose slots hold tokens.
            row: of the cache.
            move: which slots, and where to.

        Raises:
            SessionError: the device refused the copy; the row then holds anything.
        """

    def release(self, rows: slice) -> None:
        """Gives the memory of rows back where the system takes it; they then hold anything."""

    def release_slots(self, group: int, row: int, first: int) -> None:
        """Gives memory of one row of a group back where the system takes it.

        Args:
            group: number of the merge group.
            row: of the cache.
            first: slots below it may hold tokens; the others then hold anything.
        """

    def state_pointers(self) -> dict[str, tuple[int, int]]:
        """Addresses of the state in the last run, and of its output; equal in place."""

    def close(self) -> None:
        """Frees what Python would not free by itself; nothing is called afterwards."""


def call_failed(library: str, reason: str) -> SessionError:
    """The error of a call that ``library`` began and did not end."""
    return SessionError(
        f"{library} failed in this call ({reason}); the cache has not advanced, reset() before "
        "going on"
    )


def copy_failed(library: str, reason: str) -> SessionError:
    """The error of a copy between host and device that ``library`` refused."""
    return SessionError(
        f"{library} cannot copy the cache from or to the GPU ({reason}); reset() before going on"
    )


def no_room(shape: Sequence[int], reason: str) -> SessionError:
    """The error of a buffer that the device refuses."""
    return SessionError(
        f"{list(shape)} elements do not fit into GPU memory ({reason}); give a smaller "
        "max_sequence_length or batch_size"
    )
