"""Weights that lie inside of the ``.onnx`` file itself, left there instead of read into memory.

A protobuf of up to 2 GB may hold all weights of a model. Parsing it takes memory for every one of
them, each time that it is parsed, and as long as the model is in use. But a weight's bytes lie in
that file in one piece, and that is what external data is: a file, an offset and a length. So the
graph is read with its large weights described as external data of the file it comes from. The file
is not changed, nothing is copied, and onnx_ir and ONNX Runtime map the bytes where they are.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

# Smaller files are read whole: their weights take less memory than the libraries that read them.
LARGE_FILE = 64 << 20
# Smaller weights are read with the graph.
LARGE_TENSOR = 64 << 10

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types of protobuf
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9  # fields of ModelProto, GraphProto and TensorProto


class _Field(NamedTuple):
    """A field of a message: ``start`` of its tag, ``value`` and ``end`` of its content."""

    number: int
    kind: int
    start: int
    value: int
    end: int


def read_proto(file: Path) -> onnx.ModelProto:
    """Reads a graph; external data stays where it is, and so do weights inside of a large file.

    Raises:
        DecodeError: not a protobuf, or truncated.
        OSError: the file cannot be read.
    """
    if not embeds_weights(file):
        return onnx.load(file, format="protobuf", load_external_data=False)
    with file.open("rb") as stream, _mapped(stream) as data:
        parts = [
            _graph(data, field, file.name)
            if (field.number, field.kind) == (_GRAPH, _BYTES)
            else data[field.start : field.end]
            for field in _fields(data, 0, len(data))
        ]
    model = onnx.ModelProto()
    model.ParseFromString(b"".join(parts))
    return model


def embeds_weights(file: Path) -> bool:
    """Whether a file is so large that it holds weights, not only a graph."""
    return file.stat().st_size >= LARGE_FILE


def _mapped(stream: BinaryIO) -> mmap.mmap:
    return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


def _graph(data: mmap.mmap, graph: _Field, location: str) -> bytes:
    parts = []
    for field in _fields(data, graph.value, graph.end):
        large = field.end - field.value >= LARGE_TENSOR and field.kind == _BYTES
        if large and field.number == _INITIALIZER:
            parts.append(_tensor(data, field, location))
        else:
            parts.append(data[field.start : field.end])
    return _message(_GRAPH, b"".join(parts))


def _tensor(data: mmap.mmap, tensor: _Field, location: str) -> bytes:
    """A tensor that names its bytes' place instead of holding them."""
    fields = list(_fields(data, tensor.value, tensor.end))
    raw = [field for field in fields if (field.number, field.kind) == (_RAW_DATA, _BYTES)]
    if not raw or raw[-1].end - raw[-1].value < LARGE_TENSOR:  # of several the last one counts
        return data[tensor.start : tensor.end]
    stub = onnx.TensorProto()
    stub.ParseFromString(b"".join(data[f.start : f.end] for f in fields if f not in raw))
    stub.data_location = onnx.TensorProto.EXTERNAL
    del stub.external_data[:]
    where = {
        "location": location,
        "offset": raw[-1].value,
        "length": raw[-1].end - raw[-1].value,
    }
    for key, value in where.items():
        stub.external_data.add(key=key, value=str(value))
    return _message(_INITIALIZER, stub.SerializeToString())


def _fields(data: mmap.mmap, start: int, end: int) -> Iterator[_Field]:
    """The fields of the message in ``data[start:end]``."""
    at = start
    while at < end:
        tag, value = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            _, stop = _varint(data, value)
        elif kind == _BYTES:
            length, value = _varint(data, value)
            stop = value + length
        elif kind in (_FIXED32, _FIXED64):
            stop = value + (4 if kind == _FIXED32 else 8)
        else:
            raise DecodeError(f"unknown wire type {kind} at byte {at}")
        if stop > end or number == 0:
            raise DecodeError(f"a field at byte {at} does not end within its message")
        yield _Field(number, kind, at, value, stop)
        at = stop


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    """The number at a place, and the place behind it."""
    result = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        result |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return result, at
    raise DecodeError(f"a number before byte {at} does not end")


def _message(number: int, content: bytes) -> bytes:
    head = bytearray()
    for left in (number << 3 | _BYTES, len(content)):
        while left >= 0x80:
            head.append(left & 0x7F | 0x80)
            left >>= 7
        head.append(left)
    return bytes(head) + content
