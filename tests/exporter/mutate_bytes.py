"""Mutations of the model file's bytes, and of what the file is."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import onnx

FileMutation = Callable[[Path, random.Random], None]


def read_model(folder: Path) -> onnx.ModelProto | None:
    """The graph; None where an earlier mutation has left no model to read."""
    try:
        if (folder / "model.onnx").is_file():
            return onnx.load(folder / "model.onnx", load_external_data=False)
    except Exception:  # protobuf raises several kinds
        pass
    return None


def _bytes_of_model(change: Callable[[bytearray, random.Random], None]) -> FileMutation:
    def apply(folder: Path, rng: random.Random) -> None:
        file = folder / "model.onnx"
        if file.is_file():  # an earlier mutation may have made it a pipe
            content = bytearray(file.read_bytes())
            change(content, rng)
            file.write_bytes(content)

    return apply


def _truncate(content: bytearray, rng: random.Random) -> None:
    del content[rng.randrange(len(content) + 1) :]


def _flip_bits(content: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 4, 64)) if content else 0):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def _flip_bits_of_graph(content: bytearray, rng: random.Random) -> None:
    """Only in the first part of the file, where nodes are more likely than weights."""
    for _ in range(rng.choice((1, 2, 8)) if content else 0):
        content[rng.randrange(min(len(content), 40_000))] ^= 1 << rng.randrange(8)


def _cut_out(content: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(content) + 1)
    del content[start : start + rng.choice((1, 16, 4096, 100_000))]


def _insert_bytes(content: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(content) + 1)
    content[start:start] = rng.randbytes(rng.choice((1, 16, 4096)))


def _zero_block(content: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(content) + 1)
    count = min(rng.choice((8, 512, 65536)), len(content) - start)
    content[start : start + count] = bytes(count)


def _random_bytes(content: bytearray, rng: random.Random) -> None:
    content[:] = rng.randbytes(rng.choice((1, 100, 100_000)))


def _empty(content: bytearray, rng: random.Random) -> None:
    del content[:]


def _double(content: bytearray, rng: random.Random) -> None:
    content.extend(content)


def _model_is_no_file(folder: Path, rng: random.Random) -> None:
    file = folder / "model.onnx"
    if not file.is_file():
        return
    content = file.read_bytes()
    file.unlink()
    how = rng.choice(("folder", "pipe", "gone", "loop", "other"))
    if how == "folder":
        file.mkdir()
    elif how == "pipe":
        os.mkfifo(file)
    elif how == "loop":
        file.symlink_to("model.onnx")
    elif how == "other":
        (folder / "one.onnx").write_bytes(content)
        (folder / "two.onnx").write_bytes(content)


MUTATIONS: dict[str, FileMutation] = {
    **{
        change.__name__.strip("_"): _bytes_of_model(change)
        for change in (
            _truncate, _flip_bits, _flip_bits_of_graph, _cut_out, _insert_bytes, _zero_block,
            _random_bytes, _empty, _double,
        )
    },
    "model_is_no_file": _model_is_no_file,
}  # fmt: skip
