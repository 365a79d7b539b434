"""Folders and installations that cannot work are refused with a sentence that says what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from minicache.runtime import ort
from minicache.runtime.cache import Cache, resolve_shape, round_capacity
from minicache.runtime.errors import MiniCacheError, MissingDependencyError, PackageError
from minicache.runtime.manifest import FILE_NAME, Manifest, StateTensor
from minicache.runtime.session import Session

TINY = Callable[..., Path]


@pytest.fixture
def folder(tiny_folder: TINY, tmp_path: Path, backend: str) -> Path:
    return Path(shutil.copytree(tiny_folder("slerp"), tmp_path / "out"))


def edit(folder: Path, **fields: Any) -> None:
    path = folder / FILE_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_the_manifest_survives_a_round_trip(folder: Path) -> None:
    manifest = Manifest.load(folder)
    manifest.save(folder)
    assert Manifest.load(folder) == manifest


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"format_version": 99}, "format_version 99, this version reads 1"),
        ({"op_version": 7}, "MiniCacheAttention version 7, this installation has 1"),
        ({"model": "gone.onnx"}, "lacks 'gone.onnx'"),
        ({"target": "ort-tpu"}, "exported for 'ort-tpu'"),
        ({"flavour": "new"}, "lacks or misnames a field"),
        ({"state": []}, "also wants 'past_minicache.0"),
        ({"retained_fractions": {}}, "dimension 'retained_0'"),
    ],
)
def test_manifests_that_do_not_fit(folder: Path, fields: dict[str, Any], message: str) -> None:
    edit(folder, **fields)
    with pytest.raises(PackageError, match=message):
        Session(folder)


def test_state_that_the_graph_lacks(folder: Path) -> None:
    states = json.loads((folder / FILE_NAME).read_text())["state"]
    edit(folder, state=[*states, {**states[0], "past": "past_more"}])
    with pytest.raises(PackageError, match="lacks 'past_more'"):
        Session(folder)
    edit(folder, state=[{**states[0], "dtype": "int3"}])
    with pytest.raises(PackageError, match="int3"):
        Session(folder)


def test_no_manifest_and_no_json(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="give a folder that minicache-export wrote"):
        Session(tmp_path / "nowhere")
    (folder / FILE_NAME).write_text("{")
    with pytest.raises(PackageError, match="is not a manifest"):
        Session(folder)


@pytest.mark.usefixtures("ort_library")
def test_a_damaged_graph(tiny_folder: TINY, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_folder("exact"), tmp_path / "out"))
    content = (folder / "model.onnx").read_bytes()
    (folder / "model.onnx").write_bytes(content[: len(content) // 2])
    with pytest.raises(PackageError, match="cannot load"):
        Session(folder)


def test_old_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "__version__", "1.19.2")
    with pytest.raises(MissingDependencyError, match=r"1\.19\.2 is installed, 1\.20 or later"):
        ort.load_onnxruntime()
    monkeypatch.setattr(onnxruntime, "__version__", "1.100.0")
    ort.load_onnxruntime()


def test_missing_providers_are_not_replaced_in_silence() -> None:
    with pytest.raises(MissingDependencyError, match="TensorrtExecutionProvider is asked for"):
        ort.choose_providers("ort-cpu", ["TensorrtExecutionProvider"])
    assert ort.choose_providers("ort-cpu", None) == ["CPUExecutionProvider"]


def test_missing_and_foreign_libraries(
    tiny_folder: TINY, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINICACHE_ORT_LIBRARY", str(tmp_path / "none.so"))
    with pytest.raises(MissingDependencyError, match="which is not a file"):
        Session(tiny_folder("exact"))
    (tmp_path / "none.so").write_text("not a library")
    with pytest.raises(MiniCacheError, match="refuses"):
        Session(tiny_folder("exact"))


def test_shapes_of_states(tiny_folder: TINY) -> None:
    manifest = Manifest.load(tiny_folder("slerp"))
    assert [round_capacity(tokens) for tokens in (1, 16, 17, 1000)] == [16, 16, 32, 1008]
    shape = ("batch", 3, "capacity", "retained_0")
    state = StateTensor("key_code", 0, "past", "present", "int8", shape)
    assert resolve_shape(state, manifest, 2, 48) == (2, 3, 48, 12)


def test_buffers_are_aligned_and_empty(tiny_folder: TINY) -> None:
    cache = Cache(Manifest.load(tiny_folder("slerp")), 3, 48)
    for name, array in cache.arrays.items():
        assert array.ctypes.data % 64 == 0, name
        if cache.states[name].name == "retained_position":
            assert (array == -1).all()
        else:
            assert not array.any(), name
