"""Output folders appear whole or not at all."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from minicache.exporter.package import SIDE_FILES, copy_side_files, staging_folder
from minicache.runtime.errors import OutputError


def test_the_folder_appears_when_the_block_ends_well(tmp_path: Path) -> None:
    output = tmp_path / "a" / "out"
    with staging_folder(output, overwrite=False, bytes_needed=0) as folder:
        (folder / "file").write_text("x")
        assert not output.exists()
    assert (output / "file").read_text() == "x"
    assert [path.name for path in output.parent.iterdir()] == ["out"]


def test_nothing_is_left_when_the_block_fails(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError),
        staging_folder(tmp_path / "out", overwrite=False, bytes_needed=0) as folder,
    ):
        (folder / "file").write_text("x")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("keep")
    with (
        pytest.raises(OutputError, match=r"exists already.*--overwrite"),
        staging_folder(tmp_path / "out", overwrite=False, bytes_needed=0),
    ):
        pass
    assert (tmp_path / "out" / "mine").read_text() == "keep"


def test_overwrite_replaces_the_folder_only_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").write_text("old")
    (tmp_path / "out" / "minicache.json").write_text("{}")
    with staging_folder(tmp_path / "out", overwrite=True, bytes_needed=0) as folder:
        (folder / "new").write_text("new")
        assert (tmp_path / "out" / "old").exists()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_failed_overwrite_keeps_the_old_folder(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").write_text("old")
    (tmp_path / "out" / "minicache.json").write_text("{}")
    with (
        pytest.raises(RuntimeError),
        staging_folder(tmp_path / "out", overwrite=True, bytes_needed=0),
    ):
        raise RuntimeError
    assert (tmp_path / "out" / "old").read_text() == "old"


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with (
        pytest.raises(OutputError, match="is a file"),
        staging_folder(tmp_path / "out", overwrite=True, bytes_needed=0),
    ):
        pass


def test_too_small_a_disk_is_told_before_anything_is_written(tmp_path: Path) -> None:
    with (
        pytest.raises(OutputError, match="MB free, the export needs about"),
        staging_folder(tmp_path / "out", overwrite=False, bytes_needed=1 << 60),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_is_told_in_words(tmp_path: Path) -> None:
    with (
        pytest.raises(OutputError, match="is full"),
        staging_folder(tmp_path / "out", overwrite=False, bytes_needed=0),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_tokenizer_and_configuration_travel_along(tmp_path: Path) -> None:
    source, folder = tmp_path / "source", tmp_path / "folder"
    source.mkdir()
    folder.mkdir()
    for name in ("tokenizer.json", "config.json", "genai_config.json"):
        (source / name).write_text(name)
    assert sorted(copy_side_files(source, folder)) == ["config.json", "tokenizer.json"]
    assert "genai_config.json" not in SIDE_FILES
