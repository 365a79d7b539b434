"""Reading a long text into the cache, chunk by chunk."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from minicache.runtime.row_calls import RowCalls


def prefill(
    rows: RowCalls,
    ids: npt.NDArray[np.int64],
    new: npt.NDArray[np.int32],
    chunk: int,
    progress: Callable[[int], None] | None,
) -> npt.NDArray[np.float32]:
    """Appends ``ids`` in chunks; only the logits that are returned are computed.

    Args:
        rows: to append to.
        ids: [B, S], checked, right-padded.
        new: [B] valid tokens per row.
        chunk: tokens per call.
        progress: called with the number of new positions after each chunk.

    Returns:
        float32 [B, V]: the logits of each row's last token; zero for rows without tokens.
    """
    last = np.zeros((len(new), rows.session.manifest.vocab_size), np.float32)
    cuts = {*range(0, ids.shape[1], chunk), ids.shape[1], *rows._prompt_cuts(new)}
    for start, end in itertools.pairwise(sorted(cuts)):
        part = ids[:, start:end]
        counts = np.clip(new - start, 0, part.shape[1])
        ends = (counts > 0) & (new <= start + part.shape[1])
        left = np.clip(new - start, 0, None)
        result = rows._read_prompt(part, counts, left, "last" if ends.any() else None)
        if ends.any():
            last[ends] = result[ends, 0]
        if progress is not None:
            progress(part.shape[1])
    return last
