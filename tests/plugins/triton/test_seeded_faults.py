"""The interpreter's tests can fail: each of many faults in the kernels makes one of them differ."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.plugins.triton.evicted_faults import EVICTED
from tests.plugins.triton.observed_faults import OBSERVED
from tests.plugins.triton.seeded_faults import ATTEND, ENCODE, KERNELS, PAIR, Fault, plant

ALL = {"attend": ATTEND, "encode": ENCODE, "pair": PAIR, "evicted": EVICTED, "observed": OBSERVED}
ROOT = Path(__file__).parents[3]
# Looked for and not imported: only the subprocesses need them.
NEEDED = ("ml_dtypes", "torch", "triton")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"the kernels' tests need {MISSING}")


def outcomes(folder: Path, faults: Sequence[Fault]) -> dict[str, str]:
    """What each fault's case says, and each case without a fault, by name of fault or case."""
    cases = {fault.case: fault.case for fault in faults}
    names = [*cases, *(fault.name for fault in faults)]
    runs = [(case, plant(None, folder / case)) for case in cases]
    runs += [(fault.case, plant(fault, folder / fault.name)) for fault in faults]
    lines = "".join(json.dumps([case, str(copy)]) + "\n" for case, copy in runs)
    done = subprocess.run(
        [sys.executable, "-m", "tests.plugins.triton.fault_runner"],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        input=lines,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert [case for case, _ in said] == [case for case, _ in runs], done.stderr[-3000:]
    return {name: outcome for name, (_, outcome) in zip(names, said, strict=True)}


@pytest.mark.parametrize("faults", ALL.values(), ids=ALL)
def test_every_fault_differs_from_the_reference(faults: Sequence[Fault], tmp_path: Path) -> None:
    """And the same cases pass on an unchanged copy."""
    said = outcomes(tmp_path, faults)
    sound = {fault.case for fault in faults}
    assert {name: said[name] for name in sound} == dict.fromkeys(sound, "same")
    missed = {f.name: said[f.name] for f in faults if not said[f.name].startswith("differs: ")}
    assert not missed, missed


@pytest.mark.parametrize("text", ["no such text", "tl."], ids=["never", "often"])
def test_faults_name_one_place(text: str, tmp_path: Path) -> None:
    """A kernel that was rewritten must not turn a fault into none."""
    with pytest.raises(AssertionError, match=r"times in softmax\.py"):
        plant(Fault("none", "exact", "softmax", text, ""), tmp_path / "copy")


def test_faults_have_names_of_their_own() -> None:
    names = [fault.name for faults in ALL.values() for fault in faults]
    assert len(set(names)) == len(names)
    assert {fault.file for faults in ALL.values() for fault in faults} <= {
        p.stem for p in KERNELS.glob("*.py")
    }
