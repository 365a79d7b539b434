"""Which tokens a calibration reads, and which it keeps: evenly spread, and the same every time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.runtime.pieces import cut_pieces

Array = npt.NDArray[Any]

SAMPLE_BYTES = 32 << 20  # of kept keys, and of kept values
MOST_SAMPLES = 2048  # tokens: steps are fitted one component at a time
SHORTEST_PIECE = 64  # tokens; shorter pieces are mostly the start of a text
_GOLDEN = (5**0.5 - 1) / 2


def choose_documents(
    documents: Sequence[Sequence[int]],
    max_tokens: int,
    length: int,
    prefix: Sequence[int] = (),
) -> list[list[int]]:
    """Cuts documents into pieces and takes some from all over the text.

    The start of every document comes before the second piece of any, so that a short calibration
    sees as many kinds of text as there are; among the pieces of one rank the choice follows the
    golden ratio, which spreads any number of them evenly.

    Args:
        documents: token ids.
        max_tokens: tokens of all pieces together.
        length: tokens of the longest piece.
        prefix: what the tokenizer puts before every text; so does every piece begin.
    """
    chosen: list[list[int]] = []
    left = max_tokens
    pieces = [cut_pieces(document, length, prefix) for document in documents]
    for rank in range(max(map(len, pieces), default=0)):
        ranked = [own[rank] for own in pieces if len(own) > rank]
        ranked = [piece for piece in ranked if len(piece) >= SHORTEST_PIECE]
        order = np.argsort((np.arange(len(ranked)) * _GOLDEN) % 1.0, kind="stable")
        # argsort of the sequence is its inverse; the sequence itself visits text positions.
        for place in np.argsort(order, kind="stable"):
            piece = ranked[int(place)][:left]
            if len(piece) >= SHORTEST_PIECE:
                chosen.append(piece)
                left -= len(piece)
            if left < SHORTEST_PIECE:
                return chosen
    return chosen


class TokenSample:
    """Keeps every n-th token's vectors, up to a number of bytes.

    Args:
        shapes: Hk, D of each layer.
        total: tokens that will come.

    Attributes:
        arrays: by layer ``[n, Hk, D]`` fp16.
    """

    def __init__(self, shapes: Sequence[tuple[int, int]], total: int) -> None:
        per_token = 2 * sum(heads * size for heads, size in shapes)
        most = max(1, min(MOST_SAMPLES, SAMPLE_BYTES // max(per_token, 1)))
        self._stride = max(1, -(-total // most))
        count = -(-total // self._stride)
        self.arrays = [np.zeros((count, *shape), np.float16) for shape in shapes]
        self._seen = self._kept = 0

    def add(self, vectors: Sequence[Array]) -> None:
        """Offers tokens: by layer ``[T, Hk, D]``."""
        tokens = len(vectors[0])
        rows = np.arange(-self._seen % self._stride, tokens, self._stride)
        for kept, layer in zip(self.arrays, vectors, strict=True):
            limited = np.clip(layer[rows], -65504, 65504)
            kept[self._kept : self._kept + len(rows)] = limited
        self._kept += len(rows)
        self._seen += tokens
