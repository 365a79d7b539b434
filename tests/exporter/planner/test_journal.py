"""The journal: what is measured once is never measured again, whatever happens in between."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from minicache.exporter.planner.journal import Journal
from minicache.exporter.planner.measured_loss import MeasuredLoss


class Measurements:
    """Counts what is measured; breaks off after a number of measurements."""

    def __init__(self, allowed: int) -> None:
        self.done: list[str] = []
        self.allowed = allowed

    def of(self, name: str) -> Callable[[], object]:
        def measure() -> object:
            if len(self.done) == self.allowed:
                raise KeyboardInterrupt
            self.done.append(name)
            return {"tokens": [1, 2], "name": name}

        return measure

    def run(self, journal: Journal) -> list[object]:
        return [journal.get(name, self.of(name)) for name in "abcde"]


def test_a_stopped_search_measures_only_the_rest(tmp_path: Path) -> None:
    """Interrupted after three of five measurements; the other two are made by the next run."""
    path = tmp_path / "made" / "journal.json"
    first, second = Measurements(3), Measurements(9)
    with pytest.raises(KeyboardInterrupt):
        first.run(Journal(path))
    values = second.run(Journal(path))
    assert first.done == ["a", "b", "c"] and second.done == ["d", "e"]
    assert values == Measurements(9).run(Journal())
    assert [file.name for file in path.parent.iterdir()] == ["journal.json"]


@pytest.mark.parametrize("content", [b"", b'{"a": ', b"[1, 2]", b"\xff\xfe", b"null"])
def test_a_damaged_file_is_measured_again_and_mended(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "journal.json"
    path.write_bytes(content)
    damaged, mended = Measurements(9), Measurements(9)
    damaged.run(Journal(path))
    mended.run(Journal(path))
    assert damaged.done == list("abcde") and mended.done == []


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    journal = Journal(tmp_path / "file" / "journal.json")
    measurements = Measurements(9)
    assert measurements.run(journal) == measurements.run(journal)
    assert measurements.done == list("abcde")


def test_a_value_that_cannot_be_read_is_measured_again(tmp_path: Path) -> None:
    """JSON of the right syntax and the wrong shape, as an edit or another version leaves it."""
    path = tmp_path / "journal.json"
    good = MeasuredLoss([512, 512], [1.0, 2.0], [0.5, 0.25], [500, 490])
    for damaged in ("5", "[]", "{}", '{"tokens": [512]}', '{"tokens": "x", "kl": []}', "null"):
        path.write_text(f'{{"plan": {damaged}}}', encoding="utf-8")
        found = Journal(path).get("plan", good.to_dict, MeasuredLoss.from_dict)
        assert found == good
        assert Journal(path).get("plan", dict, MeasuredLoss.from_dict) == good
