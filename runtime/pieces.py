"""Cuts a document into pieces that all begin as a text does."""

from __future__ import annotations

from collections.abc import Sequence


def cut_pieces(document: Sequence[int], length: int, prefix: Sequence[int] = ()) -> list[list[int]]:
    """Cuts a document into consecutive pieces; only the last one may be shorter.

    A model that was trained with a token before every text (Gemma) is another model without it:
    it has nothing to attend to when there is nothing to say, and its perplexity doubles.

    Args:
        document: token ids, with the prefix.
        length: tokens of a piece, with the prefix.
        prefix: what the tokenizer puts before every text.

    Raises:
        ValueError: no place for a token behind the prefix.
    """
    step = length - len(prefix)
    if step < 1:
        raise ValueError(f"pieces of {length} tokens have no place behind {len(prefix)} first ones")
    body = document[len(prefix) :]
    return [[*prefix, *body[start : start + step]] for start in range(0, len(body), step)]


def whole_pieces(
    document: Sequence[int], length: int, prefix: Sequence[int] = ()
) -> list[list[int]]:
    """The pieces of ``cut_pieces`` that have all ``length`` tokens."""
    return [piece for piece in cut_pieces(document, length, prefix) if len(piece) == length]
