"""The original model as the judge of an evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from minicache.runtime.errors import SessionError

PIECE = 128  # tokens per call of the original while nothing is scored


class Original(Protocol):
    """What is needed of the original model."""

    def reset(self) -> None:
        """Empties the cache."""
        ...

    def forward(self, input_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Appends tokens [1, S] and returns their logits [1, S, V]."""
        ...


def load_original(path: Path | None, vocab_size: int) -> Original | None:
    """Opens the model that an export was made from; None when there is none.

    Raises:
        SessionError: its vocabulary is another one.
        MiniCacheError: it is no model, or not of a supported form.
    """
    if path is None:
        return None
    from minicache.exporter.original import OriginalModel

    model = OriginalModel(path, lean=True)  # the export's session stands beside it
    if model.vocab_size != vocab_size:
        raise SessionError(
            f"{str(path)!r} has {model.vocab_size} tokens, the export has {vocab_size}: it was not "
            "made from this model; give its own original"
        )
    return model


def prefill_original(original: Original, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Reads tokens [S] into the original's empty cache; returns the last one's logits [1, V]."""
    original.reset()
    # It computes logits for every token: pieces keep S x V small.
    last = max(len(ids) - PIECE, 0)
    for start in range(0, last, PIECE):
        original.forward(ids[None, start : min(start + PIECE, last)])
    return original.forward(ids[None, last:])[0, -1:]
