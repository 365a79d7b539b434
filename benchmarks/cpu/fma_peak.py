"""The most that one core can compute: the bound of prefill, as bandwidth is that of decode."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import time
from pathlib import Path

CHAINS = 12
"""Instructions of a round of ``fma_loop``."""

_VECTORS = {
    "avx2": (8, ["-mavx2", "-mfma"]),
    "avx512": (16, ["-mavx512f"]),
    "avx512vnni": (16, ["-mavx512f"]),
}


def fma_peak(isa: str, folder: Path, seconds: float = 0.1, tries: int = 5) -> float | None:
    """Floating-point operations per second of a loop of FMA instructions: the best of some tries.

    Args:
        isa: instruction set of the kernels, whose widest registers are used; the machine has it.
        folder: for the compiled loop.
        seconds: of CPU time per try, about.
        tries: of which the fastest counts, since others share the core.

    Returns:
        None where there is no C compiler that can, or no such instruction in ``isa``.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or isa not in _VECTORS:
        return None
    lanes, flags = _VECTORS[isa]
    library = folder / f"fma_peak_{isa}.so"
    source = Path(__file__).with_suffix(".c")
    command = [compiler, "-O2", "-shared", "-fPIC", *flags, str(source), "-o", str(library)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        return None
    loop = ctypes.CDLL(str(library)).fma_loop
    loop.argtypes, loop.restype = [ctypes.c_int64], None
    rounds, best = 1 << 16, 0.0
    for _ in range(tries + 1):
        begin = time.thread_time()
        loop(rounds)
        spent = max(time.thread_time() - begin, 1e-9)
        best = max(best, rounds * CHAINS * lanes * 2 / spent)
        rounds = max(1, int(rounds * seconds / spent))
    return best
