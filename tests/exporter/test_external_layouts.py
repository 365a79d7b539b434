"""External data as other tools lay it out: the same model, wherever its weights lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from minicache.exporter import io
from minicache.exporter.normalise import normalise
from minicache.exporter.parity import check_parity
from tests.exporter.graphs import EXPORTS

SOURCE = EXPORTS[0].path / "model.onnx"
LEAST = 256  # bytes: smaller tensors stay in the graph

# Where each tensor goes: file, offset, and whether its length is written down.
Place = tuple[str, int, bool]


def one_file_each(sizes: list[int]) -> Iterator[Place]:
    """As torch.onnx writes them."""
    yield from ((f"weight_{number}", 0, True) for number, _ in enumerate(sizes))


def gaps(sizes: list[int]) -> Iterator[Place]:
    """Odd offsets, and bytes between tensors that belong to none."""
    at = 7
    for size in sizes:
        yield "model.onnx.data", at, True
        at += size + 13


def no_length(sizes: list[int]) -> Iterator[Place]:
    """ONNX makes it optional: the shape says it."""
    at = 0
    for size in sizes:
        yield "model.onnx.data", at, False
        at += size


def sub_folder(sizes: list[int]) -> Iterator[Place]:
    """Two files in folders below the model's."""
    at = 0
    for number, size in enumerate(sizes):
        yield f"weights/part_{number % 2}.bin", at, True
        at += size


def _describe(tensor: onnx.TensorProto, place: Place, size: int) -> None:
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    location, offset, says_length = place
    entries: dict[str, object] = {"location": location, "offset": offset}
    if says_length:
        entries["length"] = size
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))


def lay_out(folder: Path, layout: Callable[[list[int]], Iterator[Place]]) -> Path:
    """Writes the source model with its weights at the layout's places."""
    model = onnx.load(SOURCE)
    tensors = [tensor for tensor in model.graph.initializer if len(tensor.raw_data) >= LEAST]
    assert len(tensors) > 20
    sizes = [len(tensor.raw_data) for tensor in tensors]
    for tensor, place, size in zip(tensors, layout(sizes), sizes, strict=True):
        file = folder / place[0]
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("r+b" if file.exists() else "wb") as stream:
            stream.seek(place[1])
            stream.write(tensor.raw_data)
        _describe(tensor, place, size)
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def assert_same_weights(model: ir.Model, wanted: dict[str, np.ndarray]) -> None:
    for name, array in wanted.items():
        tensor = model.graph.initializers[name].const_value
        assert tensor is not None
        np.testing.assert_array_equal(tensor.numpy(), array)


@pytest.fixture(scope="module")
def weights() -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(SOURCE).graph.initializer}


@pytest.mark.usefixtures("ort_library")
@pytest.mark.parametrize("layout", [one_file_each, gaps, no_length, sub_folder])
def test_the_model_is_the_same(
    layout: Callable[[list[int]], Iterator[Place]], weights: dict[str, np.ndarray], tmp_path: Path
) -> None:
    source = lay_out(tmp_path / "source", layout)
    assert_same_weights(io.load_model(source), weights)
    result = normalise(io.load_model(source))
    written = io.save_model(result.model, tmp_path / "out")
    assert {file.name for file in written.parent.iterdir()} == {"model.onnx", "model.onnx.data"}
    check_parity(source, written.parent, result.dtype)


def test_shared_bytes(tmp_path: Path) -> None:
    """Two initializers on the same bytes, as of tied embeddings; the output has them twice."""
    table = np.arange(4096, dtype=np.float32).reshape(64, 64)
    (tmp_path / "both.bin").write_bytes(b"\0" * 5 + table.tobytes())
    tensors = []
    for name, shape in (("square", (64, 64)), ("flat", (4096,))):
        tensor = onnx.TensorProto(name=name, data_type=onnx.TensorProto.FLOAT, dims=shape)
        _describe(tensor, ("both.bin", 5, True), table.nbytes)
        tensors.append(tensor)
    nodes = [helper.make_node("Reshape", ["flat", "shape"], ["again"])]
    nodes.append(helper.make_node("Sub", ["square", "again"], ["nothing"]))
    tensors.append(numpy_helper.from_array(np.array([64, 64]), "shape"))
    nothing = helper.make_tensor_value_info("nothing", onnx.TensorProto.FLOAT, [64, 64])
    graph = helper.make_graph(nodes, "shared", [], [nothing], tensors)
    onnx.save(helper.make_model(graph, ir_version=10), tmp_path / "model.onnx")
    written = io.save_model(io.load_model(tmp_path), tmp_path / "out")
    wanted = {"square": table, "flat": table.ravel()}
    assert_same_weights(io.load_model(written), wanted)
    offsets = {tensor.offset for tensor in io.external_tensors(io.load_model(written))}
    assert len(offsets) == 2


def test_weights_inside_of_a_subgraph(tmp_path: Path) -> None:
    """They are checked, counted, streamed and read as all others are."""
    arrays = {name: np.full((64, 64), n, np.float32) for n, name in enumerate(("yes", "no"))}
    branches = {}
    for name, array in arrays.items():
        tensor = onnx.TensorProto(name=name, data_type=onnx.TensorProto.FLOAT, dims=array.shape)
        (tmp_path / f"{name}.bin").write_bytes(b"\1" * 3 + array.tobytes())
        _describe(tensor, (f"{name}.bin", 3, True), array.nbytes)
        node = helper.make_node("Identity", [name], [f"{name}_out"])
        result = helper.make_tensor_value_info(f"{name}_out", onnx.TensorProto.FLOAT, [64, 64])
        branches[name] = helper.make_graph([node], name, [], [result], [tensor])
    choice = helper.make_node(
        "If", ["which"], ["out"], then_branch=branches["yes"], else_branch=branches["no"]
    )
    which = helper.make_tensor_value_info("which", onnx.TensorProto.BOOL, [])
    out = helper.make_tensor_value_info("out", onnx.TensorProto.FLOAT, [64, 64])
    graph = helper.make_graph([choice], "outer", [which], [out])
    onnx.save(helper.make_model(graph, ir_version=10), tmp_path / "model.onnx")
    model = io.load_model(tmp_path)
    assert io.weight_bytes(model) == 2 * 64 * 64 * 4
    written = io.save_model(model, tmp_path / "out")
    assert (written.parent / "model.onnx.data").stat().st_size >= 2 * 64 * 64 * 4
    found = {
        name: value.const_value.numpy()
        for graph in io.load_model(written).graph.subgraphs()
        for name, value in graph.initializers.items()
        if value.const_value is not None
    }
    np.testing.assert_equal(found, arrays)
