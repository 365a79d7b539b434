"""What the fetch scripts share: steps with elapsed time, logged commands, one-sentence errors."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console

# The first pattern that matches the log of a failed command names the cause.
CAUSES: tuple[tuple[str, str], ...] = (
    (
        r"No space left on device|Errno 28|ENOSPC",
        "the disk is full: free some space or choose another folder with --cache",
    ),
    (
        r"DO NOT MATCH THE HASHES",
        "a downloaded file is not the expected one: its hash differs, so it was not used",
    ),
    (
        r"name resolution|Name or service not known|Could not resolve|Network is unreachable"
        r"|NewConnectionError|ConnectionError|Connection (?:refused|broken|reset|timed out)"
        r"|ProxyError|Read timed out|No route to host|ENOTFOUND|ECONNREFUSED|ETIMEDOUT|EAI_AGAIN"
        r"|Failed to fetch",
        "the package index cannot be reached: check the network or proxy, then run this again",
    ),
    (
        r"Requires-Python|requires a different Python|No matching distribution found",
        "the package index has no such version for this Python and platform",
    ),
    (
        r"MemoryError|Cannot allocate memory|std::bad_alloc|DefaultCPUAllocator",
        "the memory is not enough: the export needs about 3 GB",
    ),
)


class FetchError(Exception):
    """Stops a fetch; the message is one sentence for the user."""


def explain_failure(output: str) -> str:
    """Returns the cause that the output of a failed command points to, in plain words."""
    for pattern, sentence in CAUSES:
        if re.search(pattern, output):
            return sentence
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it printed nothing"


def run_quietly(
    command: Sequence[str | Path],
    doing: str,
    log: Path,
    environment: Mapping[str, str],
    folder: Path | None = None,
) -> str:
    """Runs a command (in ``folder``) with its output in ``log`` only; returns that output.

    Raises:
        FetchError: The command failed; names what was being done, the cause and the log.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as sink:
        try:
            status = subprocess.run(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                cwd=folder,
                check=False,
            ).returncode
        except OSError as error:
            raise FetchError(
                f"{doing} failed: {command[0]} cannot be run ({error.strerror})."
            ) from error
    output = log.read_text(errors="replace")
    if status < 0:
        raise FetchError(f"{doing} failed: it was stopped by signal {-status} (log: {log}).")
    if status > 0:
        raise FetchError(f"{doing} failed: {explain_failure(output)} (log: {log}).")
    return output


def child_environment(temporary: Path) -> dict[str, str]:
    """The environment of child processes.

    Temporary files go below the cache: /tmp is often too small for an unpacked torch. Settings that
    would install a package elsewhere than into the private environment are dropped.
    """
    temporary.mkdir(parents=True, exist_ok=True)
    dropped = {
        "PYTHONPATH",
        "PYTHONHOME",
        "PIP_USER",
        "PIP_TARGET",
        "PIP_PREFIX",
        "PIP_REQUIRE_HASHES",
    }
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return kept | {
        "TMPDIR": str(temporary),
        "PYTHONNOUSERSITE": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(temporary / "huggingface"),
    }


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a lock file, so that two runs on one cache do not overwrite each other's steps."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FetchError(
                f"Another run is using {path.parent}: wait for it to finish, then run this again."
            ) from None
        yield


class StepBoard:
    """Prints one line per step: a spinner with the elapsed time while it runs, then its result."""

    def __init__(self, console: Console, count: int) -> None:
        self._console = console
        self._count = count
        self._number = 0

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Times one step."""
        self._number += 1
        label = f"[{self._number}/{self._count}] {title}"
        start = time.monotonic()
        try:
            with _spinner(self._console, label):
                yield
        except BaseException:
            self._console.print(f"✗ {label}", markup=False, highlight=False, soft_wrap=True)
            raise
        elapsed = time.monotonic() - start
        self._console.print(f"✓ {label}: {elapsed:.0f} s", markup=False, highlight=False)

    def skip(self, title: str) -> None:
        """Notes a step that an earlier run has finished."""
        self._number += 1
        label = f"[{self._number}/{self._count}] {title}"
        self._console.print(f"✓ {label}: done before", markup=False, highlight=False)


def _spinner(console: Console, label: str) -> contextlib.AbstractContextManager[object]:
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    if not console.is_terminal:
        return contextlib.nullcontext()
    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    progress.add_task(label, total=None)
    return progress
