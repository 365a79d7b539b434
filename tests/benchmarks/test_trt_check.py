"""The TensorRT check: what it says where there is no GPU, and with TensorRT faked."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from benchmarks import trt_check
from minicache.exporter.engine.builder import BuildOptions, BuildResult
from minicache.runtime import open_model
from minicache.runtime.engine_file import ENGINE_NAME, EngineFile
from minicache.runtime.engine_profile import engine_profiles
from minicache.runtime.manifest import Manifest
from tests.runtime.conftest import engine_folder, fake_trt, tiny_folder
from tests.runtime.fake_tensorrt import FakeTensorrt, write_engine
from tests.runtime.reference_graph import ReferenceGraph

__all__ = ["engine_folder", "fake_trt", "tiny_folder"]  # fixtures

FOLDER = Callable[..., Path]
CAPTURE = pytest.CaptureFixture[str]
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "trt_check.py"
SIZES = ["--prefill", "40", "--steps", "6", "--chunk", "24", "--contexts", "32", "9999"]


def check(folder: Path, reference: Path, *more: str) -> tuple[int, dict[str, Any]]:
    out = folder.parent / "out.json"
    code = trt_check.main([str(folder), str(reference), *SIZES, "--json", str(out), *more])
    return code, json.loads(out.read_text())


@pytest.fixture(autouse=True)
def reference_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_model, "open_graph", ReferenceGraph)


@pytest.mark.parametrize("variant", ["exact", "slerp"])
def test_an_engine_that_computes_the_same_passes(
    variant: str,
    engine_folder: FOLDER,
    tiny_folder: FOLDER,
    fake_trt: FakeTensorrt,
    capsys: CAPTURE,
) -> None:
    code, found = check(engine_folder(variant), tiny_folder(variant), "--batch", "2")
    assert code == 0 and capsys.readouterr().out.endswith("all is well\n")
    kinds = {row["calls"]: row["positions"] for row in found["correctness"]}
    assert kinds == {
        "prefill, all positions": 48,
        "prefill, last position": 2,
        "decode": 12,
        "decode, after going back": 12,
        "prefill, all positions, after a reset": 48,
        "prefill, last position, after a reset": 2,
        "decode, after a reset": 12,
    }
    assert found["GPU"] == {"name": "Fake GPU", "compute capability": "8.7"}
    assert [row["context"] for row in found["speed"]] == [32]  # the other does not fit


@pytest.mark.parametrize("variant", ["exact", "slerp"])
def test_an_engine_that_computes_something_else_fails(
    variant: str, engine_folder: FOLDER, tiny_folder: FOLDER, fake_trt: FakeTensorrt
) -> None:
    """Here with a third more in one weight of a value projection."""
    folder = engine_folder(variant)
    model = onnx.load(folder / "model.onnx")
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "wv_1")
    changed = numpy_helper.to_array(weight) * np.float32(1.3)
    weight.CopyFrom(numpy_helper.from_array(changed, "wv_1"))
    onnx.save(model, folder / "model.onnx")
    write_engine(folder, engine_profiles(Manifest.load(folder), 2, 32))
    code, found = check(folder, tiny_folder(variant))
    assert code == 1 and not all(row["passed"] for row in found["correctness"])


def test_a_missing_engine_is_built_for_the_rows_that_are_asked_for(
    engine_folder: FOLDER,
    tiny_folder: FOLDER,
    fake_trt: FakeTensorrt,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = engine_folder()
    shutil.copy(folder / ENGINE_NAME, folder / "kept")
    (folder / ENGINE_NAME).unlink()
    asked: list[BuildOptions] = []

    def build(where: Path, options: BuildOptions) -> BuildResult:
        asked.append(options)
        shutil.copy(where / "kept", where / ENGINE_NAME)
        return BuildResult(EngineFile.load(where), [], 1.5)

    monkeypatch.setattr(trt_check, "build_engine", build)
    code, found = check(folder, tiny_folder("slerp"), "--batch", "2", "--rtx")
    assert (code, found["build, s"]) == (0, 1.5)
    assert asked[0].rtx and asked[0].max_batch_size == 2


def test_exports_that_store_tokens_differently_are_not_compared(
    engine_folder: FOLDER, tiny_folder: FOLDER, fake_trt: FakeTensorrt, capsys: CAPTURE
) -> None:
    code, found = check(engine_folder("slerp"), tiny_folder("exact"))
    assert code == 1 and "store tokens differently" in found["error"]
    assert "--plan" in capsys.readouterr().err


def test_without_a_gpu_it_says_so_and_ends_with_2(tiny_folder: FOLDER) -> None:
    if importlib.util.find_spec("cuda") is not None:
        pytest.skip("cuda-python is installed")
    folder = str(tiny_folder("exact"))
    done = subprocess.run(
        [sys.executable, str(SCRIPT), folder, folder], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: cuda-python cannot be imported")


def test_the_help_names_what_comes_first(capsys: CAPTURE) -> None:
    with pytest.raises(SystemExit, match="0"):
        trt_check.main(["--help"])
    assert "exported with --target tensorrt" in capsys.readouterr().out
