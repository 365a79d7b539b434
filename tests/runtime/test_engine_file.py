"""What stands beside an engine: written, read, and compared."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from minicache.runtime.cache import Cache
from minicache.runtime.engine_file import (
    ENGINE_NAME,
    SIDECAR_NAME,
    EngineFile,
    Installation,
    digests,
)
from minicache.runtime.engine_profile import Profile, engine_profiles
from minicache.runtime.errors import PackageError
from minicache.runtime.manifest import Manifest

FILE = EngineFile(
    flavour="tensorrt_rtx",
    version="1.7.1.116",
    capabilities=("8.9", "12.0+"),
    profiles=(Profile("decode", 2, 1, 1, 64), Profile("prefill", 2, 32, 16, 48)),
    engine_bytes=4,
    files={"model.onnx": "0" * 64},
    plugin_library="libminicache_trt.so",
)
HERE = Installation("tensorrt_rtx", "1.7.1.116", "8.9", "a GPU")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / ENGINE_NAME).write_bytes(b"plan")
    FILE.save(tmp_path)
    return tmp_path


def test_it_survives_a_round_trip(folder: Path) -> None:
    found = EngineFile.load(folder)
    assert found == FILE
    found.check_folder(folder)
    found.check_installation(HERE, folder)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"format_version": 2}, "format_version is 2"),
        ({"flavour": "tensorflow"}, "flavour is 'tensorflow'"),
        ({"version": 10}, "version is 10"),
        ({"capabilities": []}, r"capabilities is \(\)"),
        ({"capabilities": ["sm_87"]}, "invalid literal"),
        ({"capabilities": 87}, "not iterable"),
        ({"profiles": []}, r"profiles is \(\)"),
        ({"profiles": [{"name": "decode"}]}, "missing 4 required"),
        ({"profiles": [dict.fromkeys(vars(FILE.profiles[0]), 0)]}, "profiles is"),
        ({"files": {"model.onnx": 1}}, "files is"),
        ({"engine_bytes": "4"}, "engine_bytes is '4'"),
        ({"more": 1}, "unexpected keyword argument 'more'"),
    ],
)
def test_a_damaged_file_names_what_is_wrong(
    fields: dict[str, Any], message: str, folder: Path
) -> None:
    path = folder / SIDECAR_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    with pytest.raises(PackageError, match=message) as failure:
        EngineFile.load(folder)
    assert "run: minicache build-engine" in str(failure.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, "{}"])
def test_what_is_no_description_at_all_is_refused(text: str, folder: Path) -> None:
    (folder / SIDECAR_NAME).write_text(text)
    with pytest.raises(PackageError, match=r"engine.json' cannot be read"):
        EngineFile.load(folder)


@pytest.mark.parametrize(
    ("capability", "runs"),
    [("8.9", True), ("12.0", True), ("12.1", True), ("13.0", True), ("8.6", False), ("9.0", False)],
)
def test_capabilities_are_compared_as_numbers(capability: str, runs: bool, folder: Path) -> None:
    found = dataclasses.replace(HERE, capability=capability)
    if runs:
        FILE.check_installation(found, folder)
    else:
        with pytest.raises(PackageError, match=rf"8.9, 12.0\+, a GPU has {capability}"):
            FILE.check_installation(found, folder)


def test_the_other_flavour_is_another_runtime(folder: Path) -> None:
    with pytest.raises(PackageError, match=r"by TensorRT-RTX 1.7.1.116, installed is TensorRT 1\."):
        FILE.check_installation(dataclasses.replace(HERE, flavour="tensorrt"), folder)


def test_files_are_known_by_their_content(folder: Path) -> None:
    for name in ("minicache.json", "model.onnx", "kernels/kernels.bin"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(name.encode())
    file = dataclasses.replace(FILE, files=digests(folder, "model.onnx"))
    file.check_folder(folder)
    (folder / "kernels" / "kernels.bin").unlink()  # not copied: nothing to compare
    file.check_folder(folder)
    (folder / "model.onnx").write_bytes(b"model.onnX")
    with pytest.raises(PackageError, match=r"model.onnx' is not the file"):
        file.check_folder(folder)


def test_the_largest_sizes_are_those_of_any_profile() -> None:
    assert FILE.largest() == Profile("largest", 2, 32, 16, 64)
    decode, prefill = FILE.profiles
    assert decode.covers(2, 1, 1, 64) and not decode.covers(2, 2, 1, 64)
    assert prefill.covers(1, 32, 16, 48) and not prefill.covers(1, 32, 16, 64)
    assert not prefill.covers(3, 1, 1, 16) and not prefill.covers(1, 32, 17, 16)


def test_profiles_cover_every_cache_of_the_model(tiny_folder: Any) -> None:
    """Both ends of a profile are the shapes that a session's own arithmetic gives."""
    manifest = Manifest.load(tiny_folder("slerp"))
    decode, prefill = engine_profiles(manifest, batch=3, tokens=64)
    assert (decode.name, prefill.name) == ("decode", "prefill")
    shapes = decode.shapes(manifest)
    for end, batch, capacity in ((0, 1, 16), (1, 3, 160), (2, 3, 160)):
        cache = Cache(manifest, batch, capacity)
        for past, array in cache.arrays.items():
            assert shapes[past][end] == array.shape, past
    assert shapes["input_ids"] == ((1, 1), (3, 1), (3, 1))
    assert prefill.shapes(manifest)["input_ids"] == ((1, 1), (3, 64), (3, 64))
    assert prefill.shapes(manifest)["logit_positions"] == ((1, 1), (3, 64), (3, 64))
    assert list(shapes) == [
        *("input_ids", "past_lengths", "total_lengths", "logit_positions"),
        *(state.past for state in manifest.state),
    ]


def test_a_prefill_call_is_no_longer_than_the_model_can_be(tiny_folder: Any) -> None:
    manifest = Manifest.load(tiny_folder("exact"))
    assert engine_profiles(manifest)[1].tokens == manifest.max_sequence_length == 160
