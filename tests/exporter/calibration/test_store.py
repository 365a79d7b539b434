"""The store: what was made of the same input is found again, and nothing else is."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from minicache.exporter.calibration import store as store_module
from minicache.exporter.calibration.calibration import Calibration
from minicache.exporter.calibration.store import CalibrationStore, default_store, fingerprint
from tests.exporter.calibration.test_codec import make_calibration, make_layers

TEXT = [[1, 2, 3], [4, 5]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A graph and weights, as an exact export has them."""
    made = tmp_path / "model"
    made.mkdir()
    (made / "model.onnx").write_bytes(bytes(range(200)))
    (made / "model.onnx.data").write_bytes(bytes(5000))
    (made / "minicache.json").write_text("{}")
    return made


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    return make_calibration(*make_layers(rank=12))


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_equal_input_has_an_equal_name(folder: Path) -> None:
    """Whatever lies beside the model: reports and plans are written there."""
    name = fingerprint(folder, TEXT, 4, "any")
    (folder / "minicache.json").write_text("{ }")
    (folder / "report.json").write_text("{}")
    assert fingerprint(folder, [np.array(document) for document in TEXT], 4, "any") == name


@pytest.mark.parametrize("position", [0, 100, 199])
def test_every_byte_of_the_graph_counts(folder: Path, position: int) -> None:
    name = fingerprint(folder, TEXT)
    flip(folder / "model.onnx", position)
    assert fingerprint(folder, TEXT) != name


def test_weights_count(folder: Path) -> None:
    name = fingerprint(folder, TEXT)
    flip(folder / "model.onnx.data", 2500)
    changed = fingerprint(folder, TEXT)
    (folder / "model.onnx.data").write_bytes(bytes(5001))
    assert len({name, changed, fingerprint(folder, TEXT)}) == 3


def test_large_weights_are_sampled_from_end_to_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of them, the first and the last bytes included; the graph is read whole still."""
    monkeypatch.setattr(store_module, "_BLOCKS", 4)
    monkeypatch.setattr(store_module, "_BLOCK_BYTES", 16)
    name = fingerprint(folder, TEXT)
    for file, position in (("model.onnx.data", 0), ("model.onnx.data", 4999), ("model.onnx", 150)):
        flip(folder / file, position)
        assert fingerprint(folder, TEXT) != name
        flip(folder / file, position)
    assert fingerprint(folder, TEXT) == name


def test_text_and_settings_count(folder: Path) -> None:
    """So do the borders of documents: the first tokens of each are treated in another way."""
    names = [
        fingerprint(folder, TEXT),
        fingerprint(folder, [[1, 2, 3], [4, 6]]),
        fingerprint(folder, [[1, 2, 3, 4, 5]]),
        fingerprint(folder, [[1, 2], [3, 4, 5]]),
        fingerprint(folder, TEXT, 4),
        fingerprint(folder, TEXT, "4"),
        fingerprint(folder, TEXT, 4, 5),
    ]
    assert len(set(names)) == len(names)


def test_what_is_kept_is_found(tmp_path: Path, calibration: Calibration) -> None:
    store = CalibrationStore(tmp_path / "made" / "by need")
    assert store.load("key") is None
    store.save("key", calibration)
    found = store.load("key")
    assert found is not None and found.layers == calibration.layers
    np.testing.assert_array_equal(found.query_moments[1], calibration.query_moments[1])
    assert store.load("other") is None
    assert [path.name for path in (tmp_path / "made" / "by need").iterdir()] == ["key.npz"]


@pytest.mark.parametrize("damage", ["cut", "empty", "text"])
def test_a_broken_file_is_made_again(tmp_path: Path, calibration: Calibration, damage: str) -> None:
    store = CalibrationStore(tmp_path)
    store.save("key", calibration)
    path = tmp_path / "key.npz"
    content = path.read_bytes()
    path.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "text": b"{}"}[damage])
    assert store.load("key") is None
    store.save("key", calibration)
    assert store.load("key") is not None


def test_bytes_that_rot_are_noticed(tmp_path: Path, calibration: Calibration) -> None:
    store = CalibrationStore(tmp_path)
    store.save("key", calibration)
    flip(tmp_path / "key.npz", os.path.getsize(tmp_path / "key.npz") // 2)
    assert store.load("key") is None


def test_a_folder_that_cannot_be_written_costs_only_time(
    tmp_path: Path, calibration: Calibration
) -> None:
    (tmp_path / "file").write_text("in the way")
    store = CalibrationStore(tmp_path / "file" / "cache")
    store.save("key", calibration)
    assert store.load("key") is None
    nowhere = CalibrationStore(None)
    nowhere.save("key", calibration)
    assert nowhere.load("key") is None and nowhere.path("key", ".json") is None


def test_the_place_is_the_users_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    monkeypatch.delenv("MINICACHE_CACHE", raising=False)
    assert default_store() == Path("/caches/minicache")
    monkeypatch.setenv("MINICACHE_CACHE", "/mine")
    assert default_store() == Path("/mine")
    for name in ("MINICACHE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_store() == Path("/home/someone/.cache/minicache")
