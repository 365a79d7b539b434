"""Runs a command and watches its memory, step by step (Linux).

Resident memory is of two kinds. Anonymous memory is the process's own: the system cannot take it
away. The rest is pages of mapped files, such as weights that are read in place: the system drops
them when it needs the room and reads them again. Both are sampled for the process and its children.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

INTERVAL = 0.05  # seconds between two samples
DONE = re.compile(r"^(?P<label>.+): done in (?P<seconds>[\d.]+) s$")  # runtime.progress


@dataclass(frozen=True)
class Step:
    """A step that the command reported on stderr, as ``LABEL: done in N s``.

    Attributes:
        label: what was done.
        seconds: it took.
        anonymous: largest sampled anonymous memory meanwhile, bytes.
        resident: largest sampled resident memory, bytes.
    """

    label: str
    seconds: float
    anonymous: int
    resident: int


@dataclass(frozen=True)
class Watched:
    """What a command took.

    Attributes:
        wall_seconds: from start to end.
        cpu_seconds: of all threads, user and system, children that it waited for included.
        peak_resident: the system's own figure (``ru_maxrss``) of the process or of its largest
            child, bytes; pages of mapped files included.
        peak_anonymous: largest sampled sum over process and children, bytes.
        steps: in the order in which they ended.
    """

    wall_seconds: float
    cpu_seconds: float
    peak_resident: int
    peak_anonymous: int
    steps: list[Step] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


@dataclass(frozen=True)
class _Sample:
    at: float
    anonymous: int
    resident: int


def watch(command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> Watched:
    """Runs a command to its end.

    Args:
        command: program and arguments.
        environment: added to this process's own.

    Raises:
        SystemExit: the command failed; with the end of its stderr.
    """
    started = time.monotonic()
    process = subprocess.Popen(
        [str(part) for part in command],
        env={**os.environ, **(environment or {})},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    lines: list[tuple[float, str]] = []
    reader = threading.Thread(target=_read, args=(process.stderr, lines))
    reader.start()
    samples: list[_Sample] = []
    while True:
        # Not Popen.wait: only wait4 tells what this child used.
        ended, status, usage = os.wait4(process.pid, os.WNOHANG)
        if ended:
            break
        samples.append(_sample(process.pid))
        time.sleep(INTERVAL)
    wall = time.monotonic() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    reader.join()
    if process.returncode:
        last = "".join(line for _, line in lines[-20:])
        raise SystemExit(f"{Path(command[0]).name} failed ({process.returncode}):\n{last}")
    return Watched(
        wall_seconds=wall,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        peak_resident=usage.ru_maxrss * 1024,
        peak_anonymous=max((sample.anonymous for sample in samples), default=0),
        steps=_steps(lines, samples),
    )


def _read(stream: IO[str], lines: list[tuple[float, str]]) -> None:
    for line in stream:
        lines.append((time.monotonic(), line))
    stream.close()


def _sample(pid: int) -> _Sample:
    anonymous = resident = 0
    for each in _family(pid):
        try:
            content = Path(f"/proc/{each}/smaps_rollup").read_text()
        except OSError:  # it has just ended
            continue
        found = dict(re.findall(r"^(Rss|Anonymous): +(\d+) kB", content, re.MULTILINE))
        anonymous += 1024 * int(found.get("Anonymous", 0))
        resident += 1024 * int(found.get("Rss", 0))
    return _Sample(time.monotonic(), anonymous, resident)


def _family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    found = [pid]
    for each in found:  # grows meanwhile
        for file in Path(f"/proc/{each}/task").glob("*/children"):
            try:
                found += map(int, file.read_text().split())
            except OSError:
                continue
    return found


def _steps(lines: Sequence[tuple[float, str]], samples: Sequence[_Sample]) -> list[Step]:
    steps = []
    for at, line in lines:
        if found := DONE.match(line):
            seconds = float(found["seconds"])
            during = [s for s in samples if at - seconds <= s.at <= at] or [_Sample(at, 0, 0)]
            anonymous = max(sample.anonymous for sample in during)
            resident = max(sample.resident for sample in during)
            steps.append(Step(found["label"], seconds, anonymous, resident))
    return steps
