"""Everything that the GPU path can be asked on a machine with a GPU, in one run of minutes.

Needs Python with PyTorch and Triton, a C++ compiler and this checkout; nothing is installed and
nothing is fetched. Kernels may be compiled ahead, on any machine that has the Triton version they
are pinned to:

    python benchmarks/gpu_check.py --compile-to PACKS --arch 90
    python benchmarks/gpu_check.py --packs PACKS --json OUT.json     # where the GPU is

Without ``--packs`` they are compiled there. Exit code 1: outputs are wrong, or a step failed; 2:
there is no GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.gpu.checkout import link_packages
from benchmarks.gpu.tables import Table

if TYPE_CHECKING:
    from benchmarks import estimate_gpu

STEPS = ("correctness", "speed", "sweep")  # after environment, library and packs
SHARES = {"correctness": 0.55, "speed": 0.85, "sweep": 1.0}  # of the budget that is then spent


@dataclass
class Check:
    """A run: what it was asked, and what it found."""

    given: argparse.Namespace
    folder: Path
    start: float = field(default_factory=time.monotonic)
    found: dict[str, Any] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    engines: dict[str, Any] = field(default_factory=dict)

    def deadline(self, step: str) -> float:
        """When a step must have ended."""
        return self.start + SHARES[step] * float(self.given.budget)

    def run(self, step: str) -> None:
        """Runs a step; its failure is noted, and the next one may run."""
        begin = time.monotonic()
        print(f"\n## {step}\n", flush=True)
        try:
            getattr(self, step)()
        except Exception as error:
            traceback.print_exc()
            self.wrong.append(f"{step}: {type(error).__name__}: {error}")
        print(f"\n({time.monotonic() - begin:.0f} s)", flush=True)
        self.save()

    def save(self) -> None:
        """Writes what was found so far: the run may be cut short."""
        if self.given.json:
            text = json.dumps({**self.found, "wrong": self.wrong}, indent=1)
            self.given.json.write_text(text, encoding="utf-8")

    def environment(self) -> None:
        """Step 1: what it runs on."""
        import torch
        import triton

        facts: dict[str, Any] = {"torch": torch.__version__, "triton": triton.__version__}
        if torch.cuda.is_available():
            from benchmarks.gpu.timing import copy_bandwidth, half_peak

            gpu = torch.cuda.get_device_properties(0)
            facts |= {"GPU": gpu.name, "capability": f"{gpu.major}.{gpu.minor}"}
            facts |= {"multiprocessors": gpu.multi_processor_count, "CUDA": torch.version.cuda}
            facts |= {"driver for CUDA": _driver_version()}
            facts |= {"copy, bytes/s": copy_bandwidth(), "fp16 products/s": half_peak()}
        self.found["environment"] = facts
        Table([facts])

    def library(self) -> None:
        """Step 2: plan and launcher."""
        from benchmarks.gpu.native import build_library

        self.found["library"] = str(build_library(self.folder, optimise=not self.given.interpret))

    def packs(self) -> None:
        """Step 3: kernels for this GPU, and as PTX."""
        from benchmarks.gpu import correctness, packs, speed, sweep
        from tests.plugins.gpu.walk_modes import LARGE

        arch, walks, size = self.arch(), correctness.WALKS, LARGE
        wanted: dict[str, Any] = {}
        if not self.given.packs:
            keys = dict.fromkeys(correctness.walk_keys(walks, size, correctness.MAIN))
            if "speed" in self.given.steps:
                keys |= dict.fromkeys(speed.speed_keys())
            wanted["main"] = list(keys), arch, None
            wanted["ptx"] = correctness.walk_keys(walks, size, correctness.PTX), 0, None
            if "sweep" in self.given.steps:
                swept = sweep.sweep_keys()
                wanted |= {name: (swept, arch, shape) for name, shape in sweep.SHAPES.items()}
            self.given.packs = self.given.compile_to or self.folder / "packs"
            packs.build_packs(self.given.packs, wanted, jobs=self.given.jobs, report=print)
        failures, spills = json.loads((self.given.packs / packs.FAILURES).read_text())
        self.found |= {"not compiled": failures, "spills": spills}
        Table({"kernel": key, "why": why[:200]} for key, why in (failures | spills).items())
        own = [key for key in failures if key.startswith(("main: ", "ptx: "))]
        if own:
            raise RuntimeError(f"{len(own)} kernels do not compile, the first is {own[0]}")

    def correctness(self) -> None:
        """Step 4: every mode against the reference."""
        from benchmarks.gpu.correctness import WALKS, run_walks
        from tests.plugins.gpu.walk_modes import LARGE, SMALL

        walks = [walk for walk in WALKS if walk.name in (self.given.modes or [walk.name])]
        size = SMALL if self.given.interpret else LARGE
        rows, table = self.found.setdefault("correctness", []), Table()
        for outcome in run_walks(walks, size, self.engine, self.deadline("correctness")):
            rows.append(vars(outcome))
            table.add(rows[-1])
            self.save()
        failed = [row["name"] for row in rows if not row["passed"]]
        self.wrong += [f"correctness: {name}" for name in failed]

    def speed(self) -> None:
        """Step 5: against PyTorch's attention on an fp16 cache."""
        from benchmarks.gpu.speed import speed_rows

        facts = self.found["environment"]
        rows = self.found.setdefault("speed", [])
        baselines = self.found.setdefault("SDPA", [])
        copy, table = facts["copy, bytes/s"], Table()
        for row in speed_rows(
            self.engine("main"), copy, self.device(), self.deadline("speed"), baselines.append
        ):
            rows.append(row)
            table.add(row)
            self.save()

    def sweep(self) -> None:
        """Step 6: splits, warps and stages."""
        from benchmarks.gpu.sweep import best, sweep_rows

        rows = self.found.setdefault("sweep", [])
        for row in sweep_rows(self.engine, self.deadline("sweep")):
            rows.append(row)
            self.save()
        Table(best(rows))

    def arch(self) -> int:
        """10 * major + minor of the GPU that kernels are compiled for."""
        import torch

        if self.given.arch:
            return int(self.given.arch)
        major, minor = torch.cuda.get_device_capability()
        return 10 * major + minor

    def engine(self, pack: str) -> Any:
        """What launches the kernels of a pack."""
        from benchmarks.gpu.device_group import GpuEngine, InterpreterEngine
        from benchmarks.gpu.native import Launcher

        if pack not in self.engines:
            self.engines[pack] = (
                InterpreterEngine()
                if self.given.interpret
                else GpuEngine(Launcher(Path(self.found["library"]), self.given.packs / pack))
            )
        return self.engines[pack]

    def device(self) -> estimate_gpu.Device:
        """What the paper estimate is told of this GPU: data sheet, or else what was measured."""
        from benchmarks import estimate_gpu

        facts = self.found["environment"]
        for device in estimate_gpu.DEVICES:
            if device.name.split()[0] in facts["GPU"]:
                return device
        copy, peak = facts["copy, bytes/s"], facts["fp16 products/s"]
        return estimate_gpu.Device(facts["GPU"], copy, peak)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--modes", nargs="+", metavar="NAME", help="walks of step correctness")
    parser.add_argument("--budget", type=float, default=450, help="seconds for all; default: 450")
    parser.add_argument("--packs", type=Path, help="folder of --compile-to")
    parser.add_argument("--compile-to", type=Path, metavar="FOLDER", help="compile, and no more")
    parser.add_argument("--arch", type=int, metavar="N", help="10 * major + minor of a GPU")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="to compile with")
    parser.add_argument("--interpret", action="store_true", help="small walks, without a GPU")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    if given.compile_to and not given.arch:
        parser.error("--compile-to needs --arch")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the steps; returns the exit code."""
    given = parse(arguments)
    steps = ["environment", "library", "packs", *(s for s in STEPS if s in given.steps)]
    if given.compile_to:
        steps = ["library", "packs"]
    elif given.interpret:
        steps = ["environment", "library", "correctness"]
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    elif not _has_gpu():
        print("error: PyTorch sees no GPU here; --interpret checks what can be checked without one",
              file=sys.stderr)  # fmt: skip
        return 2
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as name:
        link_packages(Path(name) / "import")
        check = Check(given, Path(name))
        for step in steps:
            check.run(step)
    print("\n" + ("\n".join(check.wrong) or "all is well"))
    return 1 if check.wrong else 0


def _driver_version() -> str:
    version = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def _has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


if __name__ == "__main__":
    sys.exit(main())
