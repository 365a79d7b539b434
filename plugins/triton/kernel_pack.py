"""The kernel pack: ``kernels.bin``, which the C++ launcher reads, and ``manifest.json`` beside it.

``kernels.bin``, little endian; a text is its length (u32) and its bytes::

    header   "MCKERNEL", u32 version, u32 kernels, u64 table bytes, u64 file bytes,
             u32 CRC-32 of the table, u32 zero
    table    per kernel: text key, text symbol, u32 null pointers behind the arguments,
             u32 arguments: text name, u8 kind ("p" "i" "l" "f"), u8 divisor;
             u32 images: u32 arch, u32 is PTX, u32 warps, u32 shared bytes, u64 offset, u64 size,
             u32 CRC-32
    images   each at a multiple of 16; PTX ends with a zero byte
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minicache.plugins.triton.signatures import Kind
from minicache.runtime.errors import OutputError

PACK_NAME = "kernels.bin"
MANIFEST_NAME = "manifest.json"
PACK_VERSION = 1
MAGIC = b"MCKERNEL"
HEADER = struct.Struct("<8sIIQQII")
IMAGE = struct.Struct("<IIIIQQI")
_ALIGNMENT = 16


@dataclass(frozen=True)
class PackedImage:
    """A kernel compiled for one architecture (10 * major + minor); ``details``: counts for people.

    Attributes:
        arch: architecture of the cubin, or the least one that the PTX serves.
        ptx: whether it is PTX, ending with a zero byte.
        warps: per block.
        shared: bytes of dynamic shared memory per block.
        data: the code.
        details: registers, spills and the like, only in the manifest.
    """

    arch: int
    ptx: bool
    warps: int
    shared: int
    data: bytes
    details: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PackedKernel:
    """A variant in a pack.

    Attributes:
        key: ``Variant.key``.
        symbol: name of the function in the images.
        arguments: name, kind and divisor of each run-time argument.
        null_pointers: zero pointers that come after the arguments.
        images: its compilations.
    """

    key: str
    symbol: str
    arguments: tuple[tuple[str, Kind, int], ...]
    null_pointers: int
    images: tuple[PackedImage, ...]


def write_pack(folder: Path, kernels: Sequence[PackedKernel], facts: Mapping[str, Any]) -> None:
    """Writes both files; each appears whole or not at all, the pack last.

    Args:
        folder: made if need be.
        kernels: in the order of the table.
        facts: of the build (versions), for the manifest.

    Raises:
        OutputError: the folder cannot be written.
    """
    keys = [kernel.key for kernel in kernels]
    if len(set(keys)) != len(keys):
        raise ValueError(f"kernels twice: {sorted({key for key in keys if keys.count(key) > 1})}")
    manifest = {
        "version": PACK_VERSION,
        **facts,
        "kernels": [_described(kernel) for kernel in kernels],
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder / MANIFEST_NAME, (json.dumps(manifest, indent=1) + "\n").encode())
        _replace(folder / PACK_NAME, _pack_bytes(kernels))
    except OSError as error:
        raise OutputError(
            f"cannot write kernels to {str(folder)!r}: {error.strerror}; name another folder"
        ) from error


def _described(kernel: PackedKernel) -> dict[str, Any]:
    return {
        "key": kernel.key,
        "symbol": kernel.symbol,
        "null_pointers": kernel.null_pointers,
        "arguments": [
            {"name": name, "kind": kind, "divisor": divisor}
            for name, kind, divisor in kernel.arguments
        ],
        "images": [
            {
                "arch": image.arch,
                "ptx": image.ptx,
                "warps": image.warps,
                "bytes": len(image.data),
                "details": dict(image.details),
            }
            for image in kernel.images
        ],
    }


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<I", len(data)) + data


def _table(kernels: Sequence[PackedKernel], offset: int) -> tuple[bytes, list[tuple[int, bytes]]]:
    """The table with images from ``offset`` on, and the images with their places."""
    table, blobs = b"", []
    for kernel in kernels:
        table += _text(kernel.key) + _text(kernel.symbol)
        table += struct.pack("<II", kernel.null_pointers, len(kernel.arguments))
        for name, kind, divisor in kernel.arguments:
            table += _text(name) + struct.pack("<cB", kind.encode(), divisor)
        table += struct.pack("<I", len(kernel.images))
        for image in kernel.images:
            offset += -offset % _ALIGNMENT
            head = (image.arch, int(image.ptx), image.warps, image.shared)
            table += IMAGE.pack(*head, offset, len(image.data), zlib.crc32(image.data))
            blobs.append((offset, image.data))
            offset += len(image.data)
    return table, blobs


def _pack_bytes(kernels: Sequence[PackedKernel]) -> bytes:
    size = len(_table(kernels, 0)[0])  # does not depend on the offsets
    table, blobs = _table(kernels, HEADER.size + size)
    end = blobs[-1][0] + len(blobs[-1][1]) if blobs else HEADER.size + size
    header = HEADER.pack(MAGIC, PACK_VERSION, len(kernels), len(table), end, zlib.crc32(table), 0)
    out = bytearray(header + table)
    for offset, data in blobs:
        out += bytes(offset - len(out)) + data
    return bytes(out)


def _replace(path: Path, data: bytes) -> None:
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        partial.write_bytes(data)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
