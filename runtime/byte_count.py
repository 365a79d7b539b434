"""Numbers of bytes as people write them."""

from __future__ import annotations

import re

from minicache.runtime.errors import SessionError


def read_byte_count(text: str) -> int:
    """Reads ``1073741824``, ``1GiB``, ``512 MiB``, ``0.5GiB`` or ``500MB``.

    Raises:
        SessionError: it is no positive number of bytes.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(?:([KMGT])(i?))?B?", text, re.IGNORECASE)
    count = 0
    if found:
        number, unit, binary = found.groups()
        power = " KMGT".index((unit or " ").upper())
        count = int(float(number) * (1024 if binary else 1000) ** power)
    if count < 1:
        raise SessionError(f"{text!r} is no number of bytes; give one such as 512MiB or 1GiB")
    return count
