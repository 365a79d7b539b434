"""Tables in Markdown, row by row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class Table:
    """Prints rows as they come, and a new header where the columns change."""

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._columns: list[str] = []
        for row in rows:
            self.add(row)

    def add(self, row: Mapping[str, Any]) -> None:
        """Prints a row."""
        if self._columns != list(row):
            self._columns = list(row)
            print(f"\n| {' | '.join(row)} |\n|{'---|' * len(row)}")
        print(f"| {' | '.join(_text(value) for value in row.values())} |", flush=True)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return " ".join(str(value).split())
