"""``minicache bench`` on the command line: table, JSON, plot, and what it refuses."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicache.runtime import commands
from minicache.runtime.byte_count import read_byte_count
from minicache.runtime.errors import OutputError, SessionError
from tests.runtime.tiny_model import write_tiny_model

UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "MB": 10**6, "G": 10**9}


def run(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    commands.add_bench_parser(parser.add_subparsers(required=True))
    short = ("--context", "64,100", "--rounds", 1, "--steps", 2, "--threads", 1)
    words = ("bench", arguments[0], *short, *arguments[1:])
    parsed = parser.parse_args([str(word) for word in words])
    return int(parsed.run(parsed))


@pytest.fixture(scope="module")
def folder(ort_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("bench") / "tiny", "slerp")


def test_table_and_plot(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--budget", "1MiB", "--plot", tmp_path / "plot.svg", "--quiet") == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    for words in ("64 tokens in the cache", "100 tokens in the cache", "rows in 1MiB", "export"):
        assert words in " ".join(captured.out.split())
    assert max(map(len, captured.out.splitlines())) <= 80
    root = ElementTree.parse(tmp_path / "plot.svg").getroot()
    assert root.tag.endswith("svg")
    run(folder, "--plot", tmp_path / "plot.png", "--quiet")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--json", "--budget", "1 MB") == 0
    captured = capsys.readouterr()
    content = json.loads(captured.out)
    assert captured.err == "" and content["budget"] == 10**6
    assert [row["context"] for row in content["rows"]] == [64, 100]
    for row in content["rows"]:
        assert row["rows_in_budget"] == 10**6 // row["kv_bytes"]
        assert row["tokens_per_second"] == pytest.approx(1 / row["step_seconds"]["median"])


@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        (("--context", "64;100"), SessionError, "--context is '64;100'"),
        (("--context", ""), SessionError, "--context is ''"),
        (("--context", "-5"), SessionError, "context is -5"),
        (("--budget", "much"), SessionError, "'much' is no number of bytes"),
        (("--budget", "0GiB"), SessionError, "'0GiB' is no number of bytes"),
        (("--plot", "plot.pdf"), SessionError, "name it .svg or .png"),
        (("--plot", "nowhere/plot.svg"), OutputError, "'nowhere' is no folder"),
    ],
)
def test_refusals_come_before_any_work(
    folder: Path, words: tuple[str, str], kind: type[Exception], said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("minicache.runtime.bench.open_contestants", None)
    with pytest.raises(kind, match=said):
        run(folder, *words)


@given(number=st.integers(1, 4096), unit=st.sampled_from(sorted(UNITS)), space=st.booleans())
def test_bytes_as_people_write_them(number: int, unit: str, space: bool) -> None:
    assert read_byte_count(f"{number}{' ' * space}{unit}") == number * UNITS[unit]
