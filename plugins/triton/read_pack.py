"""Reads a kernel pack back (``kernel_pack``), whole or the part that a model needs."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from minicache.plugins.triton.kernel_pack import (
    HEADER,
    IMAGE,
    MAGIC,
    MANIFEST_NAME,
    PACK_NAME,
    PACK_VERSION,
    PackedImage,
    PackedKernel,
)
from minicache.runtime.errors import PackageError


def read_pack(folder: Path) -> tuple[list[PackedKernel], dict[str, Any]]:
    """Reads both files; returns the kernels and the facts of the build.

    Raises:
        PackageError: a file is missing, of another version or damaged.
    """
    path = folder / PACK_NAME
    try:
        data = path.read_bytes()
        manifest = json.loads((folder / MANIFEST_NAME).read_text())
        rows = {row["key"]: row["images"] for row in manifest.pop("kernels")}
        kernels = _read_kernels(data, rows)
    except (OSError, ValueError, KeyError, IndexError, struct.error) as error:
        raise PackageError(
            f"{str(path)!r} is no complete kernel pack of version {PACK_VERSION} ({error}); "
            "build it again with python -m minicache.plugins.triton.build"
        ) from error
    return kernels, manifest


def select_kernels(kernels: Sequence[PackedKernel], keys: Collection[str]) -> list[PackedKernel]:
    """The kernels of some keys, each with its twin for unaligned tensors where the pack has it.

    Raises:
        PackageError: a key is not there; names it.
    """
    missing = sorted(set(keys) - {kernel.key for kernel in kernels})
    if missing:
        raise PackageError(
            f"the kernel pack lacks {len(missing)} variants, the first is {missing[0]!r}; build it "
            "with these variants: python -m minicache.plugins.triton.build --variants FILE"
        )
    wanted = {key.rpartition("|")[0] for key in keys}
    return [kernel for kernel in kernels if kernel.key.rpartition("|")[0] in wanted]


class _Cursor:
    """Takes numbers and texts from bytes, in order."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, layout: str | struct.Struct) -> tuple[Any, ...]:
        layout = struct.Struct(layout) if isinstance(layout, str) else layout
        values = layout.unpack_from(self.data, self.at)
        self.at += layout.size
        return values

    def number(self) -> int:
        return int(self.take("<I")[0])

    def text(self) -> str:
        size = self.number()
        self.at += size
        if self.at > len(self.data):
            raise ValueError("the table ends early")
        return self.data[self.at - size : self.at].decode()


def _read_kernels(data: bytes, rows: dict[str, list[dict[str, Any]]]) -> list[PackedKernel]:
    magic, version, count, size, end, checksum, _ = HEADER.unpack_from(data)
    table = data[HEADER.size : HEADER.size + size]
    if magic != MAGIC or version != PACK_VERSION:
        raise ValueError(f"its magic is {magic!r}, its version {version}")
    if end != len(data) or checksum != zlib.crc32(table):
        raise ValueError("it was cut or changed")
    cursor = _Cursor(table)
    return [_read_kernel(cursor, data, rows) for _ in range(count)]


def _read_kernel(
    cursor: _Cursor, data: bytes, rows: dict[str, list[dict[str, Any]]]
) -> PackedKernel:
    key, symbol, null_pointers = cursor.text(), cursor.text(), cursor.number()
    arguments = []
    for _ in range(cursor.number()):
        name = cursor.text()
        kind, divisor = cursor.take("<cB")
        arguments.append((name, kind.decode(), divisor))
    images = []
    for i in range(cursor.number()):
        arch, ptx, warps, shared, offset, size, checksum = cursor.take(IMAGE)
        code = data[offset : offset + size]
        if zlib.crc32(code) != checksum:
            raise ValueError(f"the code of {key!r} is damaged")
        images.append(PackedImage(arch, bool(ptx), warps, shared, code, rows[key][i]["details"]))
    return PackedKernel(key, symbol, tuple(arguments), null_pointers, tuple(images))
