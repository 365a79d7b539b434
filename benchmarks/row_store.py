"""Results of a long run, one JSON object per line, so that a run can be stopped and resumed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from minicache.runtime.errors import OutputError
from minicache.runtime.manifest import FILE_NAME

Row = dict[str, Any]


class RowStore:
    """Rows in memory and, with a path, in a file that grows with each of them.

    Args:
        path: of the ``.jsonl`` file; None: nothing is kept.
        resume: read the rows that are there; otherwise the file must not exist.

    Raises:
        OutputError: the file exists and ``resume`` is false, or it is not such a file.
    """

    def __init__(self, path: Path | None, *, resume: bool = False) -> None:
        self._path = path
        self._rows: list[Row] = []
        if path is None or not path.exists():
            return
        if not resume:
            raise OutputError(f"{str(path)!r} exists; give --resume to extend it, or remove it")
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        # A run that was killed may leave half a line at the end.
        if lines and not lines[-1].endswith("\n"):
            lines.pop()
            path.write_text("".join(lines), encoding="utf-8")
        try:
            self._rows = [json.loads(line) for line in lines]
        except ValueError as error:
            raise OutputError(
                f"{str(path)!r} is not a file of results ({error}); remove it"
            ) from error

    def find(self, **wanted: Any) -> Row | None:
        """The newest row that has all the given values, if there is one."""
        for row in reversed(self._rows):
            if all(row.get(name) == value for name, value in wanted.items()):
                return row
        return None

    def add(self, row: Row) -> None:
        """Keeps a row, and writes it at once."""
        self._rows.append(row)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def digest(*parts: bytes) -> str:
    """A short name for some content."""
    state = hashlib.blake2b(digest_size=8)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.hexdigest()


def folder_digest(folder: Path) -> str:
    """Names an export by what it computes: manifest, graph and weights.

    Raises:
        OSError: a file cannot be read.
    """
    state = hashlib.blake2b(digest_size=8)
    for path in [folder / FILE_NAME, *sorted(folder.glob("*.onnx*"))]:
        state.update(path.name.encode())
        with path.open("rb") as file:
            while block := file.read(1 << 24):
                state.update(block)
    return state.hexdigest()
