"""Mixed calibration texts: some of every kind, in turn, and nothing of what is held out."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.mix_texts import FORM_FEED, main, mix


def text(name: str, documents: int, size: int = 100) -> str:
    """Documents that say whose they are."""
    return FORM_FEED.join(f"{name}{number} ".ljust(size, "x") for number in range(documents))


def test_kinds_take_turns_and_are_spread_over_their_part() -> None:
    mixed = mix([text("a", 101), text("b", 101)], 0.5, 5, 100)
    names = [part.split()[0] for part in mixed.strip().split(FORM_FEED)]
    assert names == ["a0", "b0", "a10", "b10", "a20", "b20", "a30", "b30", "a40", "b40"]


@pytest.mark.parametrize("fraction", [0.1, 0.35, 0.8])
def test_nothing_behind_the_fraction_is_taken(fraction: float) -> None:
    """Held-out documents come from there."""
    whole = text("a", 50)
    mixed = mix([whole], fraction, 100, 100)
    last = mixed.strip().split(FORM_FEED)[-1]
    assert whole.index(last) + len(last) <= fraction * len(whole)


def test_long_documents_are_cut_and_short_ends_left_out() -> None:
    mixed = mix([text("a", 3, 250)], 0.99, 100, 100)
    parts = mixed.strip().split(FORM_FEED)
    assert len(parts) == 4 and all(50 < len(part) <= 100 for part in parts)


def test_a_kind_that_runs_out_leaves_its_turns_to_the_others() -> None:
    mixed = mix([text("a", 3), text("b", 11)], 1.0, 8, 100)
    names = [part.split()[0][0] for part in mixed.strip().split(FORM_FEED)]
    assert "".join(names) == "ababbbbbbb"


def test_the_command_writes_the_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text(text("a", 50), encoding="utf-8")
    output = tmp_path / "mixed.txt"
    arguments = ["--documents", "3", "--characters", "100", "--fraction", "0.5"]
    assert main([str(tmp_path / "a.txt"), "-o", str(output), *arguments]) == 0
    assert "3 documents" in capsys.readouterr().out
    assert output.read_text(encoding="utf-8").count(FORM_FEED) == 2
