"""The kernel pack as C++ and Python read it, and how both refuse a damaged one."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from minicache.plugins.triton.kernel_pack import write_pack
from minicache.plugins.triton.read_pack import read_pack, select_kernels
from minicache.runtime.errors import OutputError, PackageError
from tests.plugins.gpu.fake_driver import KEY, drive, make_kernel, write_kernels

LAUNCH = f"launch {KEY}|hint=1 1 1 1 p:10000 i:1 i:32 l:1 f:1"


def test_a_pack_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Kernels, arguments, images, and the facts of the manifest."""
    kernels = [make_kernel(), make_kernel(hint=0)]
    write_pack(tmp_path, kernels, {"triton": "3.9.0"})
    read, facts = read_pack(tmp_path)
    assert read == kernels
    assert facts == {"version": 1, "triton": "3.9.0"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kernels.bin", "manifest.json"]


def test_a_part_of_a_pack(tmp_path: Path) -> None:
    """By keys, with the twins for unaligned tensors; what is missing is named."""
    other = f"{KEY}|X=1|hint=1"
    kernels = [make_kernel(), make_kernel(hint=0)]
    assert select_kernels(kernels, [f"{KEY}|hint=1"]) == kernels
    with pytest.raises(PackageError, match="lacks 1 variants, the first is") as refused:
        select_kernels(kernels, [other])
    assert other in str(refused.value)


def test_two_kernels_of_one_key_are_refused(tmp_path: Path) -> None:
    """The second could never be found."""
    with pytest.raises(ValueError, match="twice"):
        write_pack(tmp_path, [make_kernel(), make_kernel()], {})


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A file stands in its place."""
    (tmp_path / "kernels").write_text("")
    with pytest.raises(OutputError, match="cannot write kernels to"):
        write_pack(tmp_path / "kernels", [make_kernel()], {})


def _with_table(data: bytes, table: bytes) -> bytes:
    """A pack with another table of the same size, and its checksum right."""
    head = bytearray(data[:40])
    head[32:36] = struct.pack("<I", zlib.crc32(table))
    return bytes(head) + table + data[40 + len(table) :]


def _damage(data: bytes, how: str) -> bytes:
    size = struct.unpack_from("<Q", data, 16)[0]
    table = data[40 : 40 + size]
    match how:
        case "empty":
            return b""
        case "other file":
            return b"\x7fELF" + data[4:]
        case "version":
            return data[:8] + struct.pack("<I", 9) + data[12:]
        case "cut":
            return data[: len(data) // 2]
        case "longer":
            return data + b"\0"
        case "table":
            return data[:50] + b"?" + data[51:]
        case "kind":
            return _with_table(data, table.replace(b"p\x10", b"q\x10", 1))
        case "long text":
            return _with_table(data, struct.pack("<I", 1 << 30) + table[4:])
        case "short table":
            return _with_table(data, struct.pack("<I", size) + table[4:])
        case _:
            return data[:-5] + b"?" + data[-4:]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("empty", "is no kernel pack"),
        ("other file", "is no kernel pack"),
        ("version", "has version 9, this library reads version 1"),
        ("cut", "it was cut or changed"),
        ("longer", "it was cut or changed"),
        ("table", "has a damaged table"),
        ("kind", "has an argument of unknown kind"),
        ("long text", "has a damaged table"),
        ("short table", "has a damaged table"),
        ("image", "has a damaged image of kernel"),
    ],
)
def test_a_damaged_pack_is_refused(
    launcher_tools: Path, tmp_path: Path, how: str, words: str
) -> None:
    """In words, with its path and what to do; Python refuses it as well."""
    pack = write_kernels(tmp_path, make_kernel(architectures=()))
    pack.write_bytes(_damage(pack.read_bytes(), how))
    answers, _ = drive(launcher_tools, [f"pack {pack}", "context 1", LAUNCH])
    refusal = answers[2 if how == "image" else 0]
    assert refusal.startswith(f"error: kernel pack '{pack}' ")
    assert words in refusal
    assert "python -m minicache.plugins.triton.build" in refusal
    if how != "kind":  # Python takes whatever kind is written
        with pytest.raises(PackageError, match="no complete kernel pack"):
            read_pack(tmp_path)


def test_a_pack_that_is_not_there(launcher_tools: Path, tmp_path: Path) -> None:
    """The path and the system's reason."""
    answers, _ = drive(launcher_tools, [f"pack {tmp_path / 'kernels.bin'}"])
    assert "kernels.bin' cannot be read: No such file or directory" in answers[0]
