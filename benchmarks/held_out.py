"""Documents of one length out of a text: some to measure on, others to calibrate with."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from minicache.runtime.corpus import read_text
from minicache.runtime.errors import TextError
from minicache.runtime.pieces import whole_pieces
from minicache.runtime.tokenizer import TextTokenizer

SEPARATOR = "\f"
CHARACTERS_PER_TOKEN = 6  # more than most texts have, so that joined documents suffice
Documents = list[list[int]]


def split_text(path: Path, skip_fraction: float) -> tuple[str, str]:
    """Cuts a text in two: what calibrations may have seen, and what they have not.

    The cut is moved on to the next border of documents, if there is one.

    Raises:
        TextError: the file cannot be read.
    """
    text = read_text(path)
    cut = int(len(text) * skip_fraction)
    border = text.find(SEPARATOR, cut)
    if cut == 0 or border < 0:
        return text[:cut], text[cut:]
    return text[:border], text[border + 1 :]


def pick_documents(text: str, tokenizer: TextTokenizer, tokens: int, count: int) -> Documents:
    """Picks documents of exactly ``tokens`` tokens.

    Form feeds separate documents. Short ones are joined with those that follow, long ones give a
    second piece once all others gave their first, and so on. The order is a fixed shuffle: a
    larger ``count`` only adds documents.

    Raises:
        TextError: the text is too short.
    """
    picked = list(islice(_pieces(text, tokenizer, tokens), count))
    if not picked:
        raise TextError(
            f"the text holds no document of {tokens} tokens, alone or joined; give a longer text"
        )
    return picked


def _pieces(text: str, tokenizer: TextTokenizer, tokens: int) -> Iterator[list[int]]:
    units = join_short(text, CHARACTERS_PER_TOKEN * tokens)
    known: dict[int, Documents] = {}  # only what is picked is tokenized
    order = np.random.default_rng(0).permutation(len(units)).tolist()
    rank = 0
    while order:
        order = [i for i in order if i not in known or rank < len(known[i])]
        for index in order:
            if index not in known:
                ids = tokenizer.encode(units[index])
                known[index] = whole_pieces(ids, tokens, tokenizer.prefix)
            yield from known[index][rank : rank + 1]
        rank += 1


def join_short(text: str, characters: int) -> list[str]:
    """The documents of a text; those below ``characters`` are joined with the following ones."""
    units: list[str] = []
    pending = ""
    for part in text.split(SEPARATOR):
        if part.strip():
            pending = f"{pending}\n\n{part}" if pending else part
        if len(pending) >= characters:
            units.append(pending)
            pending = ""
    # What is left at the end may still have enough tokens.
    return [*units, pending] if pending else units
