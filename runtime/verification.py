"""Speculative decoding: several proposed tokens in one call, of which the greedy ones stay."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Verification:
    """What became of proposed tokens, per row of a call.

    Attributes:
        accepted: int64 [B]: how many of the proposed tokens, from the first on, the model would
            have chosen itself. They are in the cache.
        next_tokens: int64 [B]: the token that the model chooses after them. It is not in the cache;
            -1 for rows without tokens.
    """

    accepted: npt.NDArray[np.int64]
    next_tokens: npt.NDArray[np.int64]


def greedy_agreement(
    ids: npt.NDArray[np.int64], new: npt.NDArray[np.int32], best: npt.NDArray[np.int64]
) -> Verification:
    """Compares proposed tokens with what the model chooses.

    Args:
        ids: [B, S] tokens of a call: one that is chosen already, then the proposed ones.
        new: [B] valid ones of each row.
        best: [B, S] most likely token after each of them.
    """
    right = best[:, :-1] == ids[:, 1:]
    right &= np.arange(1, ids.shape[1]) < new[:, None]
    accepted = np.cumprod(right, axis=1).sum(axis=1).astype(np.int64)
    following = np.where(new > 0, best[np.arange(len(new)), accepted], -1)
    return Verification(accepted, following.astype(np.int64))
