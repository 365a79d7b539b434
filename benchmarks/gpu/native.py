"""The plan and the launcher of ``plugins/gpu``, compiled here and called through ctypes."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.gpu.checkout import ROOT
from minicache.plugins.gpu_plan import Launch

PLUGINS = ROOT / "plugins"
# Names the files of plugins/cpu that the plan needs.
SOURCES = PLUGINS / "cmake" / "GpuSources.cmake"


def build_library(folder: Path, *, optimise: bool = True) -> Path:
    """Compiles the C++ parts with the system's compiler; returns the shared library.

    ``minicache.plugins.gpu_plan`` asks it from then on.

    Raises:
        RuntimeError: no compiler, or it fails.
    """
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise RuntimeError("there is no C++ compiler; install g++ or name one in CXX")
    sources = {
        "gpu": [*sorted((PLUGINS / "gpu").glob("*.cpp")), Path(__file__).parent / "check_abi.cpp"],
        "cpu": [PLUGINS / name for name in re.findall(r"\bcpu/\w+\.cpp", SOURCES.read_text())],
    }
    level = "-O2" if optimise else "-O0"
    options = ["-std=c++17", level, "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"]
    options += [f"-I{PLUGINS}", f"-I{PLUGINS / 'include'}"]
    # One unit per folder: the headers of the standard library are what takes the time.
    for unit, paths in sources.items():
        (folder / f"{unit}.cpp").write_text("".join(f'#include "{path}"\n' for path in paths))
    with ThreadPoolExecutor() as pool:
        jobs = [[compiler, *options, "-c", f"{unit}.cpp", "-o", f"{unit}.o"] for unit in sources]
        list(pool.map(lambda job: _run(job, folder), jobs))
    library = folder / "libcheck.so"
    objects = [f"{unit}.o" for unit in sources]
    _run([compiler, "-shared", *objects, "-o", library.name, "-pthread", "-ldl"], folder)
    os.environ["MINICACHE_ORT_LIBRARY"] = str(library)
    return library


def _run(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")


class Launcher:
    """The C++ launcher on the kernels of a pack."""

    def __init__(self, library: Path, pack: Path) -> None:
        self._library: Any = ctypes.CDLL(str(library))
        for name in ("check_open", "check_list"):
            getattr(self._library, name).restype = ctypes.c_void_p
        self._library.check_error.restype = ctypes.c_char_p
        self._library.check_table.restype = ctypes.c_uint64
        handle = self._library.check_open(str(pack / "kernels.bin").encode())
        self._handle = ctypes.c_void_p(handle)
        self._check(handle)

    def table(self, values: Sequence[int]) -> int:
        """Address of integers in device memory; 0 for none."""
        if not values:
            return 0
        array = (ctypes.c_int32 * len(values))(*values)
        count = ctypes.c_int64(len(values))
        return int(self._check(self._library.check_table(self._handle, array, count)))

    def load(self, launches: Sequence[Launch]) -> LaunchList:
        """Hands launches over and loads their kernels."""
        made = LaunchList(self._library, launches)
        self._check(self._library.check_prepare(self._handle, made.handle))
        return made

    def enqueue(self, launches: LaunchList, stream: int) -> None:
        """Enqueues launches on a CUDA stream."""
        address = ctypes.c_void_p(stream)
        self._check(self._library.check_enqueue(self._handle, launches.handle, address))

    def _check(self, result: Any) -> Any:
        if not result:
            raise RuntimeError(self._library.check_error().decode())
        return result


class LaunchList:
    """Launches of a call, in C++."""

    def __init__(self, library: Any, launches: Sequence[Launch]) -> None:
        self._library = library
        self.handle = ctypes.c_void_p(library.check_list())
        for launch in launches:
            kinds = "".join(kind for kind, _ in launch.arguments).encode()
            bits = [_bits(kind, value) for kind, value in launch.arguments]
            values = (ctypes.c_uint64 * len(bits))(*bits)
            grid = map(ctypes.c_uint32, launch.grid)
            library.check_add(self.handle, launch.key.encode(), *grid, kinds, values)

    def __del__(self) -> None:
        self._library.check_free(self.handle)


def _bits(kind: str, value: float) -> int:
    if kind == "f":
        return int(struct.unpack("<I", struct.pack("<f", value))[0])
    return int(value) % 2**64
