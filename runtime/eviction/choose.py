"""Which tokens go, in whole blocks of each segment."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK = 16  # tokens: a tile of codes, so that segments go on beginning with one

Bools = npt.NDArray[np.bool_]


def choose_evicted(
    worth: npt.NDArray[Any],
    may_go: Bools,
    segment: npt.NDArray[np.int64],
    number: int,
    block: int = BLOCK,
) -> Bools:
    """Chooses the tokens of the least worth, from each segment a multiple of ``block``.

    A first choice ignores blocks. Segments then give the whole blocks of what was chosen of them,
    and those with the largest rest one more, until ``number`` is reached; so at most ``block`` - 1
    tokens more than wanted go.

    Args:
        worth: [tokens], in order; NaN counts as the least, and infinite ones stay.
        may_go: [tokens], whether each may be evicted.
        segment: [tokens], each one's segment, ascending.
        number: tokens to evict; fewer go where not enough whole blocks may.
        block: tokens.

    Returns:
        [tokens], which ones go.
    """
    gone = np.zeros(len(worth), bool)
    price = np.where(np.isnan(worth), -np.inf, worth)
    open_ = np.flatnonzero(may_go & (price < np.inf))
    if number <= 0 or open_.size == 0:
        return gone
    order = open_[np.lexsort((open_, price[open_]))]  # the cheapest first, older before newer
    count = int(segment[-1]) + 1
    wanted = np.bincount(segment[order[:number]], minlength=count)
    most = np.bincount(segment[order], minlength=count) // block
    blocks = np.minimum(wanted // block, most)
    # The largest rests first; then any segment, the earlier ones first, that has a block left.
    rests = np.lexsort((np.arange(count), -(wanted - blocks * block)))
    while blocks.sum() * block < number and (blocks < most).any():
        for at in rests:
            if blocks.sum() * block < number and blocks[at] < most[at]:
                blocks[at] += 1
    for at in np.flatnonzero(blocks):
        own = order[segment[order] == at]
        gone[own[: blocks[at] * block]] = True
    return gone
