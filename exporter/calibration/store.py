"""Where calibrations are kept between exports of one model."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from minicache.exporter.calibration.calibration import Calibration
from minicache.exporter.calibration.calibration_file import FORMAT
from minicache.runtime.errors import MiniCacheError

_BLOCKS, _BLOCK_BYTES = 256, 4096


def default_store() -> Path:
    """``MINICACHE_CACHE``, or ``minicache`` in the user's cache folder."""
    if given := os.environ.get("MINICACHE_CACHE"):
        return Path(given)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "minicache"


class CalibrationStore:
    """A folder of calibrations and measurements, named after what they were made of.

    Args:
        folder: made when something is kept; None keeps nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def path(self, key: str, suffix: str) -> Path | None:
        """File of a key; None when nothing is kept."""
        return None if self.folder is None else self.folder / f"{key}{suffix}"

    def load(self, key: str) -> Calibration | None:
        """A kept calibration; None if there is none that can be read."""
        path = self.path(key, ".npz")
        if path is None or not path.is_file():
            return None
        try:
            return Calibration.load(path)
        except MiniCacheError:
            return None  # damaged or of another version: it is made again

    def save(self, key: str, calibration: Calibration) -> None:
        """Keeps a calibration; without room for it, it is made again next time."""
        path = self.path(key, ".npz")
        if path is None:
            return
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        with suppress(OSError, MiniCacheError):
            path.parent.mkdir(parents=True, exist_ok=True)
            calibration.save(partial)
            partial.replace(path)
        with suppress(OSError):
            partial.unlink()


def fingerprint(exact_folder: Path, documents: Sequence[Sequence[int]], *settings: object) -> str:
    """A name for a calibration: changes with the model, the text and the settings.

    The graph is hashed whole; of large weight files the size and evenly spread blocks.
    """
    digest = hashlib.sha256(repr((FORMAT, settings)).encode())
    for file in sorted(exact_folder.glob("model.onnx*")):
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}".encode())
        with file.open("rb") as stream:
            if size <= _BLOCKS * _BLOCK_BYTES or file.suffix == ".onnx":
                digest.update(stream.read())
                continue
            for block in range(_BLOCKS):
                stream.seek(block * (size - _BLOCK_BYTES) // (_BLOCKS - 1))
                digest.update(stream.read(_BLOCK_BYTES))
    for document in documents:
        digest.update(np.asarray(document, np.int64).tobytes() + b"|")
    return digest.hexdigest()[:24]
