"""What takes long to make is made once per test run, also by several pytest workers."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest


def make_once(
    factory: pytest.TempPathFactory, worker: str, name: str, make: Callable[[Path], None]
) -> Path:
    """Returns a folder that ``make`` has filled; other workers wait for the first one.

    Args:
        factory: pytest's ``tmp_path_factory``.
        worker: ``PYTEST_XDIST_WORKER``, empty without workers.
        name: of the folder.
        make: fills the folder that it is given; a failure is each worker's own.
    """
    base = factory.getbasetemp()
    root = base.parent if worker else base  # of all workers of the run
    folder, done = root / name, root / f"{name}.done"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            done.touch()
    return folder
