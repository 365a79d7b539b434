"""Weights inside of a large .onnx file: mapped where they are, and everything else as before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from minicache.exporter import embedded, io
from minicache.exporter.normalise import normalise
from minicache.exporter.original import OriginalModel
from minicache.exporter.parity import check_parity
from minicache.exporter.runnable import runnable_source
from minicache.runtime.errors import ModelFileError, OutputError
from tests.exporter.graphs import EXPORTS, FIXTURES

SOURCE = EXPORTS[0].path / "model.onnx"
INT4 = FIXTURES / "genai-llama3-gqa-h16-cpu-int4" / "model.onnx"


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the small models of the tests count as large."""
    monkeypatch.setattr(embedded, "LARGE_FILE", 1 << 10)
    monkeypatch.setattr(embedded, "LARGE_TENSOR", 256)


def inlined(source: Path, folder: Path) -> Path:
    """A model with all its weights in the .onnx file."""
    folder.mkdir(exist_ok=True)
    onnx.save(onnx.load(source), folder / "model.onnx")
    return folder / "model.onnx"


def without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph with nothing but names, types and shapes of its weights."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        for field in ("raw_data", "external_data", "data_location"):
            tensor.ClearField(field)
    return copy


def test_nothing_but_the_place_of_the_weights_differs() -> None:
    plain, lazy = onnx.load(SOURCE), embedded.read_proto(SOURCE)
    assert without_weights(plain) == without_weights(lazy)
    moved = [t for t in lazy.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
    assert len(moved) > 20
    assert lazy.ByteSize() < plain.ByteSize() / 2
    onnx.load_external_data_for_model(lazy, str(SOURCE.parent))
    for ours, theirs in zip(lazy.graph.initializer, plain.graph.initializer, strict=True):
        assert ours.raw_data == theirs.raw_data


def test_small_files_are_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "LARGE_FILE", SOURCE.stat().st_size + 1)
    assert embedded.read_proto(SOURCE) == onnx.load(SOURCE)


@pytest.mark.usefixtures("ort_library")
@pytest.mark.parametrize("source", [SOURCE, INT4], ids=["fp32", "int4"])
def test_parity_of_an_export(source: Path, tmp_path: Path) -> None:
    file = inlined(source, tmp_path / "source")
    model = io.load_model(file)
    assert {Path(tensor.path) for tensor in io.external_tensors(model)} == {file}
    result = normalise(model)
    written = io.save_model(result.model, tmp_path / "out")
    assert {f.name for f in written.parent.iterdir()} == {"model.onnx", "model.onnx.data"}
    check_parity(file, written.parent, result.dtype)


def test_onnx_runtime_maps_them_too(tmp_path: Path) -> None:
    """Also where the file is a link, as in a Hugging Face cache; the logits are the same."""
    blob = inlined(SOURCE, tmp_path / "blob")
    link = tmp_path / "snapshot" / "model.onnx"
    link.parent.mkdir()
    link.symlink_to(blob)
    assert isinstance(runnable_source(link, onnxruntime.SessionOptions()), bytes)
    ids = np.arange(1, 9)[None]
    mapped = OriginalModel(link).logits_of(ids)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded, "LARGE_FILE", 1 << 40)
        assert runnable_source(blob, onnxruntime.SessionOptions()) == str(blob)
        read = OriginalModel(blob).logits_of(ids)
    np.testing.assert_allclose(mapped, read, atol=1e-6 * np.abs(read).max())


def test_models_with_data_files_are_given_by_name(tmp_path: Path) -> None:
    """Some weights inside, some beside: ONNX Runtime finds both by itself."""
    model = onnx.load(SOURCE)
    largest = max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    (tmp_path / "one.bin").write_bytes(largest.raw_data)
    wanted = numpy_helper.to_array(largest)
    onnx.external_data_helper.set_external_data(largest, "one.bin", 0, wanted.nbytes)
    largest.ClearField("raw_data")
    onnx.save(model, tmp_path / "model.onnx")
    file = tmp_path / "model.onnx"
    assert runnable_source(file, onnxruntime.SessionOptions()) == str(file)
    tensor = io.load_model(file).graph.initializers[largest.name].const_value
    assert isinstance(tensor, ir.ExternalTensor) and tensor.location == "one.bin"
    np.testing.assert_array_equal(tensor.numpy(), wanted)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    content = SOURCE.read_bytes()
    file = tmp_path / "model.onnx"
    for size in np.linspace(1 << 10, len(content) - 1, 40, dtype=int):
        file.write_bytes(content[:size])
        with pytest.raises(ModelFileError, match=r"truncated|not a valid|no ONNX graph"):
            io.load_model(file)


@pytest.mark.parametrize("noise", [b"\xff" * 2048, b"\x0b" * 2048, b"\x00" * 2048])
def test_no_protobuf(noise: bytes, tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(noise)
    with pytest.raises(DecodeError):
        embedded.read_proto(file)
    with pytest.raises(ModelFileError, match="not an ONNX model or is truncated"):
        io.load_model(file)


def test_the_source_is_not_overwritten(tmp_path: Path) -> None:
    file = inlined(SOURCE, tmp_path / "source")
    content = file.read_bytes()
    with pytest.raises(OutputError, match="another output folder"):
        io.save_model(io.load_model(file), file.parent)
    assert file.read_bytes() == content


def test_a_graph_saved_over_itself_keeps_its_weights(tmp_path: Path) -> None:
    file = inlined(SOURCE, tmp_path / "source")
    wanted = {t.name: numpy_helper.to_array(t) for t in onnx.load(file).graph.initializer}
    io.save_graph(io.load_model(file), file.parent)
    again = io.load_model(file)
    for name, array in wanted.items():
        tensor = again.graph.initializers[name].const_value
        assert tensor is not None
        np.testing.assert_array_equal(tensor.numpy(), array)


LOAD = """
import sys
from pathlib import Path
from minicache.exporter import io
model = io.load_model(Path(sys.argv[1]))
print(io.weight_bytes(model), Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""


def varint(number: int) -> bytes:
    """A number as protobuf writes it."""
    digits = [number >> shift & 0x7F for shift in range(0, max(number.bit_length(), 1), 7)]
    return bytes([digit | 0x80 for digit in digits[:-1]] + digits[-1:])


def test_two_gigabytes_in_one_file_take_no_memory(tmp_path: Path) -> None:
    """A sparse file: one weight of almost 2 GiB, the limit of protobuf."""
    size = 2**31 - (1 << 20)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["table"], ["out"])],
        "large",
        [],
        [onnx.helper.make_tensor_value_info("out", onnx.TensorProto.INT8, [size])],
    ).SerializeToString()
    head = onnx.TensorProto(name="table", data_type=onnx.TensorProto.INT8, dims=[size])
    tensor = head.SerializeToString() + varint(9 << 3 | 2) + varint(size)
    graph += varint(5 << 3 | 2) + varint(len(tensor) + size) + tensor
    model = onnx.ModelProto(ir_version=10, opset_import=[onnx.helper.make_opsetid("", 18)])
    file = tmp_path / "model.onnx"
    with file.open("wb") as stream:
        stream.write(model.SerializeToString())
        stream.write(varint(7 << 3 | 2) + varint(len(graph) + size) + graph)
        stream.truncate(stream.tell() + size)
    command = [sys.executable, "-c", LOAD, str(file)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    found, peak = map(int, result.stdout.split())
    assert found == size
    assert peak * 1024 < 300e6
