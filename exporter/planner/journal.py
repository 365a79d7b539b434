"""Keeps what was measured on disk, so that a search that was stopped goes on where it was."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

Value = TypeVar("Value")


class Journal:
    """Named JSON values, written to disk one by one.

    Args:
        path: a file to keep them in, made when needed; None keeps them in memory. A file that
            cannot be read or written only costs the time to measure again.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._values: dict[str, Any] = {}
        if path is not None:
            with suppress(OSError, ValueError, RecursionError):
                found = json.loads(path.read_text(encoding="utf-8"))
                self._values = found if isinstance(found, dict) else {}

    def get(
        self, name: str, measure: Callable[[], Any], read: Callable[[Any], Value] = lambda x: x
    ) -> Value:
        """The value of ``name``, measured unless it is known.

        Args:
            name: of the measurement.
            measure: makes it, as JSON.
            read: makes of that JSON what the caller wants. Where it fails on what the file holds,
                as after an edit or with another version's file, the value is measured again.
        """
        if name in self._values:
            with suppress(AttributeError, KeyError, TypeError, ValueError):
                return read(self._values[name])
        self._values[name] = measure()
        self._save()
        return read(self._values[name])

    def _save(self) -> None:
        if self._path is None:
            return
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial = self._path.with_name(f"{self._path.name}.{os.getpid()}")
            partial.write_text(json.dumps(self._values), encoding="utf-8")
            partial.replace(self._path)
