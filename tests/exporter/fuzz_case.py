"""Runs the exporter over one damaged model, each case in a process of its own.

A hang, a crash of ONNX Runtime or an exhausted memory is then an outcome of the case.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import math
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from minicache.exporter import ExportOptions, cli, embedded, export_model, probe, time_limit
from minicache.exporter.inspect import inspect_model
from minicache.runtime.errors import MiniCacheError
from tests.exporter.mutations import CANARY, Case, make_case

# Address space of a case: much more than a fixture needs, much less than a machine has.
MEMORY_BYTES = 4 << 30
FILE_BYTES = 1 << 30
RUN_SECONDS = 8.0  # in place of the exporter's own limit of one run in ONNX Runtime
LONGEST_SENTENCE = 900
# Outcomes that are right, and those that are defects.
REWRITTEN, REFUSED = "rewritten", "refused"
UNTYPED, CRASH, HANG, BROKEN = "untyped", "crash", "hang", "broken promise"


@dataclass
class Outcome:
    """What became of a case.

    Attributes:
        seed: of the case.
        fixture: likewise.
        names: its mutations.
        kind: ``rewritten`` (and proved), ``refused``, or one of the defects.
        error: class of the error, or signal of the crash.
        message: its sentence, or what was wrong.
        seconds: CPU time that it took.
    """

    seed: int
    fixture: str
    names: tuple[str, ...]
    kind: str
    error: str
    message: str
    seconds: float

    @property
    def wrong(self) -> bool:
        """Whether this is a defect of the exporter."""
        return self.kind not in (REWRITTEN, REFUSED)


Found = tuple[str, str, str]  # kind, error, message


def run_case(case: Case, fixtures: Path, limit: float = 20.0) -> Outcome:
    """Runs ``inspect`` and an exact export over a case.

    Args:
        case: what to damage, and how.
        fixtures: folder of model folders.
        limit: seconds of CPU time after which the case counts as a hang.
    """
    workplace = Path(tempfile.mkdtemp(prefix="minicache-fuzz-"))
    try:
        found, seconds = isolated(lambda: _work(case, fixtures, workplace), workplace, limit)
    finally:
        shutil.rmtree(workplace, ignore_errors=True)
    return Outcome(case.seed, case.fixture, case.names, *found, seconds)


def isolated(work: Callable[[], Found], workplace: Path, limit: float) -> tuple[Found, float]:
    """Runs ``work`` in a forked process; this process must not have used ONNX Runtime yet.

    Args:
        work: what to run.
        workplace: an existing folder.
        limit: seconds of CPU time; of time with waiting, fifteen times as many.

    Returns:
        What ``work`` returned or why it could not, and the seconds of CPU time.
    """
    result, noise = workplace / "result.json", workplace / "stderr"
    child = os.fork()
    if child == 0:
        _in_child(work, result, noise, math.ceil(limit))
    deadline = time.monotonic() + 15 * limit
    while True:
        done, status, usage = os.wait4(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            deadline = math.inf
        time.sleep(0.005)
    seconds = usage.ru_utime + usage.ru_stime
    if result.is_file():
        kind, error, message = json.loads(result.read_text())
        return (kind, error, message), seconds
    code = os.waitstatus_to_exitcode(status)
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    kind = HANG if name in ("SIGXCPU", "SIGKILL") else CRASH
    return (kind, name, noise.read_text(errors="replace")[-2000:]), seconds


def _in_child(work: Callable[[], Found], result: Path, noise: Path, seconds: int) -> None:
    """Never returns."""
    try:
        faulthandler.disable()  # pytest's would print a crash to its own output
        os.dup2(os.open(noise, os.O_CREAT | os.O_WRONLY), 2)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
        # ONNX Runtime's threads wait actively: on one core it starts none.
        os.sched_setaffinity(0, {random.choice(sorted(os.sched_getaffinity(0)))})
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
        try:
            found = work()
        except BaseException as error:
            steps = traceback.extract_tb(error.__traceback__)
            ours = [f for f in steps if "minicache" in f.filename] or list(steps)
            place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
            found = (UNTYPED, type(error).__name__, f"{place} {str(error)[:2000]}")
        part = result.with_suffix(".part")
        part.write_text(json.dumps(found))
        part.rename(result)
    finally:
        sys.stderr.flush()
        os._exit(0)


def _work(case: Case, fixtures: Path, workplace: Path) -> Found:
    """Both commands, and every promise that they make about files."""
    source = make_case(case, fixtures, workplace)
    time_limit.SECONDS = probe.SECONDS = RUN_SECONDS
    if case.seed % 3 == 0:  # weights inside of the graph's file are read as those of a large one
        embedded.LARGE_FILE, embedded.LARGE_TENSOR = 0, 256
    before = fingerprint(source)
    known = {path.name for path in workplace.iterdir()}
    output = workplace / "out"
    by = _by_command if case.seed % 8 == 5 else _by_function
    inspected, found = by(source, output)
    if fingerprint(source) != before:
        return BROKEN, "", "the input was changed"
    if found[0] == REWRITTEN and inspected:
        return BROKEN, "", f"exported, but inspect says: {inspected}"
    wrong = check_sentence(found[2]) if found[0] == REFUSED else _leaked(output)
    wrong = wrong or (inspected and check_sentence(inspected))
    new = {path.name for path in workplace.iterdir()} - known - {"stderr"}
    if new != ({"out"} if found[0] == REWRITTEN else set()):
        wrong = f"left behind: {sorted(new)}"
    return (BROKEN, found[1], f"{wrong} ({found[2]})") if wrong else found


def _by_function(source: Path, output: Path) -> tuple[str, Found]:
    """What ``inspect_model`` refuses with, and what ``export_model`` makes."""
    inspected = ""
    try:
        json.dumps(inspect_model(source))
    except MiniCacheError as error:
        inspected = str(error)
    try:
        export_model(source, output, ExportOptions(mode="exact", quiet=True))
    except MiniCacheError as error:
        return inspected, (REFUSED, type(error).__name__, str(error))
    return inspected, (REWRITTEN, "", "")


def _by_command(source: Path, output: Path) -> tuple[str, Found]:
    """The same through the command line: an exit code, and one line at most."""
    inspected = _run_command(["inspect", str(source), "--json"])[1]
    export = ["export", str(source), "-o", str(output), "--mode", "exact", "--quiet"]
    code, message = _run_command(export)
    return inspected, (REFUSED, f"exit code {code}", message) if code else (REWRITTEN, "", "")


def _run_command(arguments: list[str]) -> tuple[int, str]:
    noise = (output := Path(arguments[1]).parent / "stderr").stat().st_size
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    code = cli.main(arguments)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    said = output.read_bytes()[noise:].decode(errors="backslashreplace")
    lines = said.splitlines()
    proof = "The rewritten graph differs" in said  # a failed proof, which is no user's error
    expected = (0, 0) if code == 0 else (1 if proof else 2, 1)
    wrong = (code, len(lines)) != expected or not all(x.startswith("minicache: ") for x in lines)
    if wrong or "Traceback" in said:
        raise AssertionError(f"{arguments[0]} exits with {code} and says: {said[:1500]}")
    return code, said.removeprefix("minicache: ").strip()


def check_sentence(message: str) -> str:
    """What is wrong with an error's sentence, "" if nothing is."""
    if not message or len(message) > LONGEST_SENTENCE:
        return f"the sentence has {len(message)} characters"
    if "canary sits" in message:
        return "the sentence tells the content of a file outside of the model's folder"
    odd = [c for c in message if not c.isprintable()]
    return f"the sentence holds {odd[0]!r}" if odd else ""


def _leaked(output: Path) -> str:
    files = (path for path in output.rglob("*") if path.is_file())
    # Whole in any 61 bytes of the canary, and its first.
    leaks = [path.name for path in files if CANARY[:16] in path.read_bytes()]
    return f"the content of a file outside of the model's folder is in {leaks}" if leaks else ""


def fingerprint(folder: Path) -> str:
    """A hash of every name and all content of a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        content = path.read_bytes() if path.is_file() else os.readlink(path).encode() if (
            path.is_symlink()) else b"-"  # fmt: skip
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + content + b"\0")
    return digest.hexdigest()


def to_json(outcome: Outcome) -> str:
    """One line."""
    return json.dumps(asdict(outcome))
