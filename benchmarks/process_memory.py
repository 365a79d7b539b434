"""What the operating system says of this process's memory (Linux)."""

from __future__ import annotations

import os
from pathlib import Path


def resident_bytes() -> int:
    """Resident set size, mapped files included."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def anonymous_bytes() -> int:
    """Resident memory of the process's own: state, activations; not the weights' mapped files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the system does not tell RssAnon; run this on Linux")
