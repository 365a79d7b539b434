"""A call on some rows of a model that may only take all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.runtime.model import Model


def run_rows(
    model: Model,
    control: dict[str, npt.NDArray[Any]],
    logits: npt.NDArray[np.float32] | None,
    shape: tuple[int, ...],
    first: int,
    lengths: npt.NDArray[np.int32] | None,
) -> None:
    """Runs a model on its rows [first, first + B).

    Args:
        model: to run.
        control: of the B rows, as ``Model.run`` takes it.
        logits: [B, K, V] to fill; None when nobody wants them.
        shape: B, K, V.
        first: row of the cache.
        lengths: [rows of the cache] tokens that each holds, where the call must run on all of them;
            None where it need not. The others get no new tokens: kernels leave them alone.

    Raises:
        SessionError: the call was refused or failed.
    """
    if lengths is None or len(lengths) == shape[0]:
        model.run(control, logits, shape, first)
        return
    rows, all_rows = slice(first, first + shape[0]), len(lengths)
    padded = {
        name: np.zeros((all_rows, *array.shape[1:]), array.dtype) for name, array in control.items()
    }
    for name in ("past_lengths", "total_lengths"):  # what a row has evicted must fit its length
        padded[name][:] = lengths
    for name, array in control.items():
        padded[name][rows] = array
    whole = (all_rows, *shape[1:])
    filled = None if logits is None else np.empty(whole, np.float32)
    model.run(padded, filled, whole)
    if logits is not None and filled is not None:
        logits[...] = filled[rows]
