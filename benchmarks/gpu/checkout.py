"""Finds the packages of this checkout where nothing is installed."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("exporter", "plugins", "runtime")


def link_packages(folder: Path) -> None:
    """Makes ``minicache.*``, ``tests.*`` and ``benchmarks.*`` importable, also in child processes.

    Args:
        folder: gets ``minicache/`` with links to the packages, as an editable install has them; it
            must outlive the process.
    """
    names = folder / "minicache"
    names.mkdir(parents=True)
    for package in PACKAGES:
        (names / package).symlink_to(ROOT / package, target_is_directory=True)
    for place in (ROOT, folder):
        sys.path.insert(0, str(place))
