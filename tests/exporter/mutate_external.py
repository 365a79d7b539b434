"""Mutations of external data: places outside of the folder, odd offsets, damaged files."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import onnx
from onnx import StringStringEntryProto, TensorProto

from tests.exporter.mutate_bytes import FileMutation, read_model

# From the model's folder; the canary lies beside that folder.
OUTSIDE = (
    "../canary.bin", "a/../../canary.bin", "./../canary.bin", "../model/../canary.bin",
    "..\\canary.bin", "/etc/passwd", "/proc/self/environ", "//etc/passwd", "ABSOLUTE", "link.bin/x",
    "", ".", "..", "/", "a\x00b", "x" * 5000, "x/" * 3000 + "x", "model.onnx", "missing.bin",
    "~/.bashrc", "$HOME/x", "file:///etc/passwd", "http://127.0.0.1/x", "ä.bin", "folder", "pipe",
    "con.bin\n", " ", "*/_ORT_MEM_ADDR_/*",
)  # fmt: skip
NUMBERS = (
    "-1", "0", "1", "7", str(2**31), str(2**63), str(2**64 + 8), "9" * 5000, "1e5", "abc", "",
    " 12", "0x10", "-" + "9" * 30, "4096", "³", "1_000", "nan",
)  # fmt: skip


def _move_out(folder: Path, model: onnx.ModelProto) -> None:
    """Gives a model without external data one file of it."""
    if any(tensor.external_data for tensor in model.graph.initializer):
        return
    with (folder / "model.onnx.data").open("wb") as file:
        for tensor in model.graph.initializer:
            if len(tensor.raw_data) >= 64:
                _point(tensor, "model.onnx.data", str(file.tell()), str(len(tensor.raw_data)))
                file.write(tensor.raw_data)
                tensor.ClearField("raw_data")


def _point(tensor: TensorProto, location: str, offset: str, length: str) -> None:
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.append(StringStringEntryProto(key=key, value=value))


def _with_external(
    change: Callable[[Path, list[TensorProto], random.Random], None],
) -> FileMutation:
    def apply(folder: Path, rng: random.Random) -> None:
        model = read_model(folder)
        if model is None:
            return
        _move_out(folder, model)
        tensors = [tensor for tensor in model.graph.initializer if tensor.external_data]
        if tensors:
            change(folder, tensors, rng)
        (folder / "model.onnx").write_bytes(model.SerializeToString())

    return apply


def _entry(tensor: TensorProto, key: str, value: str) -> None:
    for entry in tensor.external_data:
        if entry.key == key:
            entry.value = value


def _place(folder: Path, rng: random.Random) -> str:
    """A location; what it may lead to is made."""
    place = rng.choice(OUTSIDE[:5] if rng.random() < 0.4 else OUTSIDE)
    (folder / "a").mkdir(exist_ok=True)
    (folder / "folder").mkdir(exist_ok=True)
    if place == "pipe" and not (folder / "pipe").exists():
        os.mkfifo(folder / "pipe")
    return str(folder.parent / "canary.bin") if place == "ABSOLUTE" else place


def _location(folder: Path, tensors: list[TensorProto], rng: random.Random) -> None:
    place = _place(folder, rng)
    for tensor in tensors if rng.random() < 0.5 else [rng.choice(tensors)]:
        _entry(tensor, "location", place)


def _offset(folder: Path, tensors: list[TensorProto], rng: random.Random) -> None:
    _entry(rng.choice(tensors), rng.choice(("offset", "length")), rng.choice(NUMBERS))


def _keys(folder: Path, tensors: list[TensorProto], rng: random.Random) -> None:
    tensor = rng.choice(tensors)
    how = rng.randrange(3)
    if how == 0:
        del tensor.external_data[rng.randrange(len(tensor.external_data)) :]
    elif how == 1:
        tensor.external_data.extend(list(tensor.external_data))
    else:
        tensor.external_data.add(key=rng.choice(("basepath", "checksum", "")), value="../")


def _hidden_location(folder: Path, rng: random.Random) -> None:
    """The canary as data of tensors that are no initializers."""
    hide_location(folder, rng.choice(OUTSIDE[:5]), rng.randrange(4))


def hide_location(folder: Path, place: str, how: int) -> None:
    """Gives a constant external data, in one of four ways; of new ones the value is returned.

    Args:
        folder: of the model.
        place: where the data lies.
        how: 0 a new constant, 1 all constants, 2 one in an ``If``, 3 one in a function.
    """
    model = read_model(folder)
    if model is None:
        return
    stolen = TensorProto(name="stolen", data_type=1, dims=[4])
    _point(stolen, place, "0", "16")
    constant = onnx.helper.make_node("Constant", [], ["stolen"])
    constant.attribute.add(name="value", type=onnx.AttributeProto.TENSOR).t.CopyFrom(stolen)
    nodes = model.graph.node
    if how == 0:
        nodes.insert(0, constant)
        model.graph.output.add(name="stolen").type.tensor_type.elem_type = 1
    elif how == 1:
        for node in nodes:
            if node.op_type == "Constant" and node.attribute:
                stolen.data_type, stolen.dims[:] = node.attribute[0].t.data_type, [1]
                node.attribute[0].t.CopyFrom(stolen)
    elif how == 2:
        body = onnx.helper.make_graph([constant], "b", [], [onnx.ValueInfoProto(name="stolen")])
        branches = {"then_branch": body, "else_branch": body}
        nodes.insert(0, onnx.helper.make_node("If", ["yes"], ["out"], **branches))
        model.graph.initializer.append(TensorProto(name="yes", data_type=9, raw_data=b"\1"))
        model.graph.output.add(name="out").type.tensor_type.elem_type = 1
    else:
        opsets = [onnx.helper.make_opsetid("", 18)]
        model.functions.append(
            onnx.helper.make_function("com.example", "Steal", [], ["stolen"], [constant], opsets)
        )
        nodes.insert(0, onnx.helper.make_node("Steal", [], ["s"], domain="com.example"))
        model.graph.output.add(name="s").type.tensor_type.elem_type = 1
        model.opset_import.append(onnx.helper.make_opsetid("com.example", 1))
    (folder / "model.onnx").write_bytes(model.SerializeToString())


def _damage_data(folder: Path, tensors: list[TensorProto], rng: random.Random) -> None:
    for data in folder.glob("*.data"):
        how = rng.choice(("missing", "short", "empty", "folder", "pipe", "noise"))
        if not data.is_file():
            continue
        content = data.read_bytes()
        data.unlink()
        if how == "short":
            data.write_bytes(content[: rng.randrange(len(content) + 1)])
        elif how == "empty":
            data.touch()
        elif how == "folder":
            data.mkdir()
        elif how == "pipe":
            os.mkfifo(data)
        elif how == "noise":
            data.write_bytes(rng.randbytes(len(content)))


MUTATIONS: dict[str, FileMutation] = {
    **{
        f"external{change.__name__}": _with_external(change)
        for change in (_location, _offset, _keys, _damage_data)
    },
    "hidden_location": _hidden_location,
}
