"""What a session drives: a graph or an engine whose state is updated in place, wherever it lies.

``binding`` runs on ONNX Runtime, ``device_binding`` likewise on a GPU, ``tensorrt_model`` on
TensorRT. Letters: B batch, K positions with logits, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from minicache.runtime.errors import SessionError


class Model(Protocol):
    """One opened model with its cache; the cache's arrays are what the host sees of it."""

    def run(
        self,
        control: dict[str, npt.NDArray[Any]],
        logits: npt.NDArray[np.float32] | None,
        shape: tuple[int, ...],
    ) -> None:
        """Runs the model once.

        Args:
            control: the arrays named in ``signature.CONTROL_INPUTS``.
            logits: [B, K, V] to fill, C-contiguous; None when nobody wants them.
            shape: B, K, V.

        Raises:
            SessionError: the call was refused or failed.
        """

    def push(self) -> None:
        """Brings to the kernels what an empty cache must hold; the rest is written before read."""

    def pull(self) -> None:
        """Brings the cache's arrays up to date, for inspection."""

    def state_pointers(self) -> dict[str, tuple[int, int]]:
        """Addresses of each state's buffer and of its output in the last run; equal in place."""

    def close(self) -> None:
        """Frees what Python would not free by itself; nothing is called afterwards."""


def call_failed(library: str, reason: str) -> SessionError:
    """The error of a call that ``library`` began and did not end."""
    return SessionError(
        f"{library} failed in this call ({reason}); the cache has not advanced, reset() before "
        "going on"
    )


def no_room(shape: Sequence[int], reason: str) -> SessionError:
    """The error of a buffer that the device refuses."""
    return SessionError(
        f"{list(shape)} elements do not fit into GPU memory ({reason}); give a smaller "
        "max_sequence_length or batch_size"
    )
