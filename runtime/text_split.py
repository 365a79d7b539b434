"""Splits a text: what codecs are fitted to, what plans are compared on, and what judges them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minicache.runtime.errors import TextError
from minicache.runtime.pieces import cut_pieces, whole_pieces

Documents = list[list[int]]

FEWEST_DOCUMENTS = 8
MOST_PLANNING = 8  # documents: more take longer and say little more
PREFILL, SCORED = 512, 256  # tokens of a planning document that are only read, and scored
PIECE = PREFILL + SCORED + 1  # the last one is only predicted
LONG_PIECE = 1024  # tokens that a long document is cut into


@dataclass(frozen=True)
class TextSplit:
    """Documents of token ids; no token is in two of the parts.

    Attributes:
        calibration: half of the text; three quarters when the judging text is another.
        planning: pieces of equal length of another quarter.
        verification: whole documents of the last quarter; empty when the text is another.
        prefix: what the tokenizer puts before every text; so do pieces of documents begin.
    """

    calibration: Documents
    planning: Documents
    verification: Documents
    prefix: Sequence[int] = ()


def split_documents(
    documents: Sequence[Sequence[int]],
    piece: int,
    *,
    verify_elsewhere: bool,
    prefix: Sequence[int] = (),
) -> TextSplit:
    """Deals documents out, so that every part has all kinds of text that the whole has.

    A text of few documents is cut into pieces first.

    Args:
        documents: token ids.
        piece: tokens of a planning document.
        verify_elsewhere: another text judges, so that none of this one has to be kept for it.
        prefix: what the tokenizer puts before every text.

    Raises:
        TextError: too short for all parts.
    """
    long = [list(document) for document in documents if len(document) >= piece]
    if len(long) < FEWEST_DOCUMENTS:
        size = max(piece, LONG_PIECE)
        long = [part for document in documents for part in cut_pieces(document, size, prefix)]
        long = [part for part in long if len(part) >= piece]
        short: Documents = []
    else:
        short = [list(document) for document in documents if len(document) < piece]
    planning = [part for document in long[1::4] for part in whole_pieces(document, piece, prefix)]
    # Of a single planning document no interval is known, and no loss would be small enough.
    if len(long) < 4 or len(planning) < 2:
        raise TextError(
            f"the calibration text gives {len(long)} documents of {piece} tokens, at least 6 are "
            f"needed and {4 * FEWEST_DOCUMENTS} are good; give a longer text"
        )
    planning = _some(planning, MOST_PLANNING)
    calibration = long[0::4] + long[2::4] + short
    if verify_elsewhere:
        return TextSplit(calibration + long[3::4], planning, [], prefix)
    return TextSplit(calibration, planning, long[3::4], prefix)


def _some(documents: Documents, most: int) -> Documents:
    """At most so many of them, spread evenly."""
    count = min(most, len(documents))
    return [documents[index * len(documents) // count] for index in range(count)]


def judging_documents(split: TextSplit, context: int) -> Documents:
    """Pieces of ``context`` tokens: the first of every document before the second of any.

    Raises:
        TextError: no document is long enough.
    """
    documents = split.verification
    ranked = [
        (rank, part)
        for document in documents
        for rank, part in enumerate(whole_pieces(document, context, split.prefix))
    ]
    if not ranked:
        longest = max(map(len, documents), default=0)
        raise TextError(
            f"the held-out part of the calibration text has documents of at most {longest} tokens, "
            f"{context} are needed; give a longer text, another one with --text, a smaller "
            "--verify-context, or --no-verify"
        )
    return [document for _, document in sorted(ranked, key=lambda pair: pair[0])]
