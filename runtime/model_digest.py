"""Which model a cache belongs to: a few hexadecimal digits that other weights or plans change."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path

from minicache.runtime.errors import PackageError
from minicache.runtime.manifest import Manifest

_WHOLE_BYTES = 64 << 20  # files up to this size are read whole
_BLOCKS, _BLOCK_BYTES = 4096, 4096  # of larger ones: so many, evenly spaced


def model_digest(folder: Path, manifest: Manifest) -> str:
    """SHA-256 over state layout, graph and weights, in hex.

    Of files of more than 64 MB it reads the size and 4096 blocks of 4 KB: enough to look at every
    matrix of a model, and far quicker than reading it. That tells one model from another; it is no
    proof against somebody who makes a file on purpose.

    Args:
        folder: what ``minicache-export`` wrote.
        manifest: its manifest.

    Raises:
        PackageError: a file cannot be read.
    """
    layout = [manifest.op_version, *(dataclasses.asdict(state) for state in manifest.state)]
    digest = hashlib.sha256(json.dumps(layout, sort_keys=True).encode())
    # The weights lie beside the graph, in files that begin with its name.
    files = sorted(path for path in folder.glob("*") if path.name.startswith(manifest.model))
    for path in files:
        try:
            size = path.stat().st_size
            digest.update(f"\0{path.name}\0{size}\0".encode())
            with path.open("rb") as file:
                if size <= _WHOLE_BYTES:
                    while block := file.read(1 << 20):
                        digest.update(block)
                else:
                    for place in range(_BLOCKS):
                        start = place * (size - _BLOCK_BYTES) // (_BLOCKS - 1)
                        digest.update(os.pread(file.fileno(), _BLOCK_BYTES, start))
        except OSError as error:
            raise PackageError(
                f"{str(path)!r} cannot be read ({error.strerror}); copy the whole folder again"
            ) from error
    return digest.hexdigest()
