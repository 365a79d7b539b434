"""Engines that cannot be opened: what is missing, and what does not belong together."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minicache.plugins import library
from minicache.runtime import tensorrt_engine
from minicache.runtime.engine_file import ENGINE_NAME, SIDECAR_NAME
from minicache.runtime.engine_profile import engine_profiles
from minicache.runtime.errors import MissingDependencyError, PackageError, SessionError
from minicache.runtime.manifest import Manifest
from minicache.runtime.session import Session
from tests.runtime.fake_cuda import Status
from tests.runtime.fake_tensorrt import FakeTensorrt, write_engine

FOLDER = Callable[..., Path]


def rewrite(folder: Path, **fields: Any) -> None:
    """Writes the engine of a folder again, with other facts beside it."""
    write_engine(folder, engine_profiles(Manifest.load(folder), 2, 32), **fields)


def test_a_machine_without_tensorrt_says_what_to_install(
    engine_folder: FOLDER, fake_trt: FakeTensorrt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)  # as if it were not there
    with pytest.raises(MissingDependencyError, match=r"TensorRT's Python .* cannot be imported"):
        Session(engine_folder())


def test_an_engine_of_the_other_flavour_asks_for_its_own_extra(
    engine_folder: FOLDER, fake_trt: FakeTensorrt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    folder = engine_folder()
    rewrite(folder, flavour="tensorrt_rtx")
    with pytest.raises(MissingDependencyError, match=r"TensorRT-RTX's .*\[tensorrt-rtx\]"):
        Session(folder)


def test_a_machine_without_cuda_python_says_what_to_install(
    engine_folder: FOLDER, fake_trt: FakeTensorrt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    with pytest.raises(MissingDependencyError, match=r"cuda-python cannot be .*; run: pip install"):
        Session(engine_folder())


@pytest.mark.parametrize("without", ["cuInit", "cuDeviceGet"])
def test_a_machine_without_a_gpu_says_so(
    without: str, engine_folder: FOLDER, fake_trt: FakeTensorrt
) -> None:
    fake_trt.driver.failing[without] = Status.CUDA_ERROR_NO_DEVICE
    wanted = rf"no GPU can be used \({without}: CUDA_ERROR_NO_DEVICE\)"
    with pytest.raises(MissingDependencyError, match=wanted):
        Session(engine_folder())


def test_a_driver_that_cannot_be_found_is_a_missing_gpu(
    engine_folder: FOLDER, fake_trt: FakeTensorrt, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(flags: int) -> None:
        raise RuntimeError("no libcuda.so.1\nand much more")

    monkeypatch.setattr(fake_trt.driver, "cuInit", fail)
    with pytest.raises(MissingDependencyError, match=r"no GPU can be used \(no libcuda.so.1\)"):
        Session(engine_folder())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"version": "10.9.0.34"}, r"built by TensorRT 10.9.0.34, installed is TensorRT 10.14"),
        ({"capabilities": ("8.0", "9.0")}, r"8.0, 9.0, Fake GPU has 8.7; run: minicache build-eng"),
        ({"plugin_version": "9"}, r"version 9 of the plugin MiniCacheAttention, .* has 1"),
        ({"engine_bytes": 3}, r"bytes, engine.json says 3; copy both again"),
        ({"files": {"model.onnx": "0"}}, r"model.onnx' is not the file that engine.plan was built"),
    ],
)
def test_an_engine_that_does_not_fit_is_told_in_words(
    fields: dict[str, Any], message: str, engine_folder: FOLDER, fake_trt: FakeTensorrt
) -> None:
    folder = engine_folder()
    rewrite(folder, **fields)
    with pytest.raises(PackageError, match=message):
        Session(folder)
    assert not fake_trt.contexts
    assert (fake_trt.driver.memory, fake_trt.driver.contexts) == ({}, 0)


def test_a_folder_without_an_engine_names_the_command(
    engine_folder: FOLDER, fake_trt: FakeTensorrt
) -> None:
    folder = engine_folder()
    for name in (SIDECAR_NAME, ENGINE_NAME):
        (folder / name).unlink()
        with pytest.raises(PackageError, match=rf"holds no {name}; .* minicache build-engine /"):
            Session(folder)


def test_the_graph_need_not_be_copied_to_the_device(
    engine_folder: FOLDER, fake_trt: FakeTensorrt
) -> None:
    folder = engine_folder()
    (folder / "model.onnx").unlink()
    (folder / "kernels" / "kernels.bin").unlink()
    with Session(folder) as session:
        session.forward([[1]])


def test_other_kernels_than_the_engines_are_noticed(
    engine_folder: FOLDER, fake_trt: FakeTensorrt
) -> None:
    folder = engine_folder()
    (folder / "kernels" / "kernels.bin").write_bytes(b"newer")
    with pytest.raises(PackageError, match=r"kernels.bin' is not the file"):
        Session(folder)


def test_a_library_that_holds_no_plugin_is_named_with_what_was_wanted(
    engine_folder: FOLDER, fake_trt: FakeTensorrt
) -> None:
    fake_trt.logger = tensorrt_engine._log("tensorrt")
    fake_trt.refusing["load_library"] = "undefined symbol: x"
    wanted = (
        r"no plugin MiniCacheAttention, version 1, namespace com.minicache, in "
        r".*libminicache_trt.so' \(undefined symbol: x\)"
    )
    with pytest.raises(MissingDependencyError, match=wanted):
        Session(engine_folder())


def test_tensorrts_first_error_is_the_one_that_is_shown(
    engine_folder: FOLDER, fake_trt: FakeTensorrt
) -> None:
    fake_trt.refusing["deserialize"] = "magic  tag\nis wrong"
    with pytest.raises(PackageError, match=r"cannot load .*engine.plan' \(magic tag is wrong\)"):
        Session(engine_folder())
    assert not fake_trt.driver.memory and not fake_trt.driver.contexts


def test_an_engine_with_other_profiles_than_its_file_says(
    engine_folder: FOLDER, fake_trt: FakeTensorrt
) -> None:
    folder = engine_folder()
    rewrite(folder, profiles=engine_profiles(Manifest.load(folder))[:1])
    with pytest.raises(PackageError, match=r"has 2 profiles, the file beside it says 1"):
        Session(folder)


def test_a_manifest_of_another_model_is_noticed(
    engine_folder: FOLDER, fake_trt: FakeTensorrt
) -> None:
    folder = engine_folder()
    manifest = Manifest.load(folder)
    states = {state.name: state for state in manifest.state}
    assert states["key_code"].dtype == "int8"
    text = (folder / "minicache.json").read_text().replace('"int8"', '"int32"', 1)
    (folder / "minicache.json").write_text(text)
    rewrite(folder)
    with pytest.raises(PackageError, match=r"wants 'past_minicache.0.key_code' as tensor\(int8\)"):
        Session(folder)


def test_an_engine_that_reads_the_hosts_memory_is_not_ours(
    engine_folder: FOLDER, fake_trt: FakeTensorrt
) -> None:
    fake_trt.hosted.add("past_lengths")
    with pytest.raises(PackageError, match=r"wants 'past_lengths' in the host's memory"):
        Session(engine_folder())


@pytest.mark.parametrize("function", ["create_execution_context", "set_optimization_profile_async"])
def test_a_context_that_is_refused_is_told_when_the_session_opens(
    function: str, engine_folder: FOLDER, fake_trt: FakeTensorrt
) -> None:
    fake_trt.refusing[function] = "out of memory"
    with pytest.raises(SessionError, match=r"no execution context .* \(out of memory\); free GPU"):
        Session(engine_folder())
    assert (fake_trt.driver.memory, fake_trt.driver.contexts) == ({}, 0)


def test_tensorrt_rtx_takes_our_plugin_once_and_refuses_junk(tmp_path: Path) -> None:
    """The real module; it needs no GPU for either."""
    if importlib.util.find_spec("tensorrt_rtx") is None:
        pytest.skip("TensorRT-RTX is not installed")
    try:
        library.tensorrt_library_path()
    except MissingDependencyError as error:
        pytest.skip(str(error))
    (tmp_path / ENGINE_NAME).write_bytes(b"not an engine" * 100)
    for _ in range(2):
        with pytest.raises(PackageError, match=r"-RTX .* cannot load .*engine.plan' \(.+\)"):
            tensorrt_engine.TensorrtEngine(tmp_path, "tensorrt_rtx")
