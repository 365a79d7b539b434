"""Sizes in bytes as people write them: ``16GiB``, ``512 MB``, ``1000000``."""

from __future__ import annotations

import math
import re

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", re.IGNORECASE)


def parse_byte_size(text: str) -> int:
    """Reads a size; ``GB`` and ``G`` are 10^9 bytes, ``GiB`` are 2^30.

    Raises:
        ValueError: no number of bytes, or less than one.
    """
    found = _SIZE.fullmatch(text)
    unit, binary = (found[2].upper(), found[3]) if found else ("", "")
    if found is None or (binary and not unit):
        raise ValueError(f"{text!r} is no size; give bytes, or for example 512MiB or 16GB")
    size = math.floor(float(found[1]) * (_BINARY if binary else _UNITS)[unit])
    if size < 1:
        raise ValueError(f"{text!r} is less than one byte")
    return size
