"""Progress of long steps on stderr: a bar in a terminal, plain lines elsewhere.

Use it as::

    with progress("calibrating", total=len(texts)) as step:
        for text in texts:
            ...
            step.advance()
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

LINE_SECONDS = 10.0  # between two plain lines: enough to see life in a log, few enough to read it


class Step:
    """One long step; this base class says nothing."""

    def advance(self, count: int = 1) -> None:
        """Notes that ``count`` more of the total are done."""


class _BarStep(Step):
    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar, self._task = bar, task

    def advance(self, count: int = 1) -> None:
        self._bar.advance(self._task, count)


class _LineStep(Step):
    def __init__(self, label: str, total: int | None) -> None:
        self._label, self._total, self._done = label, total, 0
        self._started = self._said = time.monotonic()

    def advance(self, count: int = 1) -> None:
        self._done += count
        if time.monotonic() - self._said >= LINE_SECONDS:
            self._said = time.monotonic()
            of_total = f" of {self._total}" if self._total else ""
            self._say(f"{self._done}{of_total}")

    def finish(self) -> None:
        self._say(f"done in {time.monotonic() - self._started:.1f} s")

    def _say(self, text: str) -> None:
        print(f"{self._label}: {text}", file=sys.stderr, flush=True)


@contextmanager
def progress(label: str, total: int | None = None, *, quiet: bool = False) -> Iterator[Step]:
    """Shows a step while its block runs.

    Args:
        label: what is being done.
        total: how much there is to do; None when unknown (a spinner instead of a bar).
        quiet: show nothing.

    Yields:
        The step; call its ``advance`` as the work goes on.
    """
    if quiet:
        yield Step()
        return
    if not sys.stderr.isatty():
        line = _LineStep(label, total)
        yield line
        line.finish()  # not after an error: the error has the last word
        return
    columns = [SpinnerColumn(), TextColumn("{task.description}")]
    measured = [BarColumn(), MofNCompleteColumn()] if total is not None else []
    console = Console(stderr=True)
    # transient: an error message or the next output starts on a clean line.
    with Progress(*columns, *measured, TimeElapsedColumn(), console=console, transient=True) as bar:
        yield _BarStep(bar, bar.add_task(label, total=total))
