"""Models beyond 2 GiB: nothing reads their weights into memory, and no two sessions hold them.

The weights are zeros in a sparse file, which takes no disk, with known bytes at its end.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from minicache.exporter import io, original_session, parity
from minicache.exporter.normalise import normalise
from minicache.exporter.original import OriginalModel
from tests.exporter.graphs import EXPORTS

ROWS, COLUMNS = 4, 1 << 27  # fp32: 2 GiB, the limit of a protobuf and of 31 bits
TAIL = np.arange(4096, dtype=np.float32)
FREE = 6 << 30  # bytes of disk: a copy of the weights is written
PEAK = 400e6  # bytes, of which Python with onnx and NumPy takes about 100

PROGRAM = """
import sys
from pathlib import Path
from minicache.exporter import io
model = io.load_model(Path(sys.argv[1]))
getattr(io, sys.argv[2])(model, Path(sys.argv[3]))
print(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""


def write_large_model(folder: Path) -> Path:
    """Four sparse weights of 0.5 GiB, one behind the other, and a small one behind them."""
    tensors, at = [], 0
    for number in range(ROWS + 1):
        shape = TAIL.shape if number == ROWS else (COLUMNS,)
        tensor = TensorProto(name=f"w{number}", data_type=TensorProto.FLOAT, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        size = 4 * shape[0]
        for key, value in {"location": "weights.bin", "offset": at, "length": size}.items():
            tensor.external_data.add(key=key, value=str(value))
        tensors.append(tensor)
        at += size
    with (folder / "weights.bin").open("wb") as stream:
        stream.truncate(at - TAIL.nbytes)
        stream.seek(at - TAIL.nbytes)
        stream.write(TAIL.tobytes())
    nodes = [helper.make_node("Concat", [t.name for t in tensors], ["out"], axis=0)]
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, ["n"])
    graph = helper.make_graph(nodes, "large", [], [out], tensors)
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def save_elsewhere(source: Path, function: str, folder: Path) -> float:
    """Calls a function of ``io`` in a process of its own; returns the process's peak in bytes."""
    command = [sys.executable, "-c", PROGRAM, str(source), function, str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return 1024 * float(result.stdout)


def assert_large_and_lazy(folder: Path) -> None:
    """All weights are external, the last one beyond 2 GiB; graph files are small."""
    model = io.load_model(folder)
    tensors = {tensor.name: tensor for tensor in io.external_tensors(model)}
    assert sorted(tensors) == [f"w{number}" for number in range(ROWS + 1)]
    last = tensors[f"w{ROWS}"]
    assert last.offset is not None and last.offset >= 2**31
    np.testing.assert_array_equal(last.numpy(), TAIL)
    assert not tensors["w2"].numpy()[:: COLUMNS // 64].any()
    assert (folder / "model.onnx").stat().st_size < 1 << 20


@pytest.mark.slow
def test_a_copy_is_streamed(tmp_path: Path) -> None:
    """As at the beginning of every export."""
    if shutil.disk_usage(tmp_path).free < FREE:
        pytest.skip("less than 6 GiB of disk are free")
    source = write_large_model(tmp_path)
    try:
        assert save_elsewhere(source, "save_model", tmp_path / "out") < PEAK
        assert_large_and_lazy(tmp_path / "out")
        size = (tmp_path / "weights.bin").stat().st_size
        assert (tmp_path / "out" / "model.onnx.data").stat().st_size == size
    finally:
        shutil.rmtree(tmp_path / "out", ignore_errors=True)  # 2.1 GB, not left to pytest


def test_a_graph_is_saved_beside_its_weights(tmp_path: Path) -> None:
    """As where a plan is applied; the weights' file is not touched."""
    write_large_model(tmp_path)
    before = (tmp_path / "weights.bin").stat()
    assert save_elsewhere(tmp_path, "save_graph", tmp_path) < PEAK
    assert_large_and_lazy(tmp_path)
    after = (tmp_path / "weights.bin").stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)
    assert after.st_blocks * 512 < 1 << 20, "still sparse"


def test_new_weights_go_into_a_file_of_their_own(tmp_path: Path) -> None:
    """Codecs of large models: beside the weights, not in the graph's protobuf."""
    write_large_model(tmp_path)
    model = io.load_model(tmp_path)
    added = np.random.default_rng(0).standard_normal(5 << 20).astype(np.float32)  # 21 MB
    value = ir.Value(name="added", const_value=ir.tensor(added, name="added"))
    model.graph.initializers["added"] = value
    io.save_graph(model, tmp_path)
    again = io.load_model(tmp_path).graph.initializers["added"].const_value
    assert isinstance(again, ir.ExternalTensor) and again.location == io.CODEC_NAME
    np.testing.assert_array_equal(again.numpy(), added)
    assert (tmp_path / "model.onnx").stat().st_size < 1 << 20


@pytest.mark.usefixtures("ort_library")
def test_the_proof_has_one_session_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each packs a copy of the weights: two would double the memory of an export."""
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    opened = []

    def watched(make: Any) -> Any:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            assert not alive, "another session is still open"
            made = make(*arguments, **options)
            alive.add(made)
            opened.append(type(made).__name__)
            return made

        return wrapper

    monkeypatch.setattr(parity, "OriginalModel", watched(OriginalModel))
    monkeypatch.setattr(parity, "open_exported", watched(parity.open_exported))
    source = EXPORTS[0].path
    result = normalise(io.load_model(source))
    io.save_model(result.model, tmp_path)
    parity.check_parity(source, tmp_path, result.dtype)
    assert opened == ["OriginalModel", "BareGraph", "BareGraph"]


@pytest.mark.parametrize("large", [True, False])
def test_a_large_judge_leaves_its_weights_where_they_are(
    large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside an export's session; its logits are the same."""
    settings: list[str] = []

    def record(model: OriginalModel) -> OriginalModel:
        options = model._session._session.get_session_options()
        key = "session.disable_prepacking"
        try:
            settings.append(options.get_session_config_entry(key))
        except RuntimeError:  # not set
            settings.append("0")
        return model

    source, ids = EXPORTS[0].path, np.arange(1, 20)[None]
    wanted = record(OriginalModel(source)).logits_of(ids)
    monkeypatch.setattr(original_session, "LARGE_BYTES", 0 if large else 1 << 40)
    found = record(OriginalModel(source, lean=True)).logits_of(ids)
    assert settings == ["0", "1" if large else "0"]
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())
