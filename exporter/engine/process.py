"""Runs the process that builds, and reads what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from minicache.exporter.engine.phases import Phases
from minicache.exporter.engine.request import BuildAnswer, BuildRequest


@dataclass(frozen=True)
class Ended:
    """How the process ended.

    Attributes:
        answer: None if it ended without one.
        code: its exit code; negative, the signal that killed it.
        stderr: file with what else it said.
    """

    answer: BuildAnswer | None
    code: int
    stderr: Path


def run_worker(
    request: BuildRequest, environment: Mapping[str, str], scratch: Path, phases: Phases
) -> Ended:
    """Runs ``worker`` on a request; whatever interrupts this ends the process too.

    Args:
        request: what to build.
        environment: of the process.
        scratch: folder for its files.
        phases: is told what it is doing.
    """
    asked, stderr = scratch / "request.json", scratch / "stderr"
    request.save(asked)
    answer = None
    with (
        stderr.open("wb") as said,
        subprocess.Popen(
            [sys.executable, "-m", "minicache.exporter.engine.worker", str(asked)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                content = _content(line)
                if "answer" in content:
                    answer = BuildAnswer.of(content)
                else:
                    phases.take(content)
            code = process.wait()
        except BaseException:
            process.kill()
            raise
    return Ended(answer, code, stderr)


def _content(line: str) -> dict[str, object]:
    try:
        content = json.loads(line)
    except ValueError:  # TensorRT's own output, if it has any
        return {}
    return content if isinstance(content, dict) else {}
