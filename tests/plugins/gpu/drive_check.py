"""Launches through the C interface of ``gpu_check.py`` on the fake driver: ``drive_check PACK``."""

from __future__ import annotations

import ctypes
import sys
import tempfile
from pathlib import Path


def main(pack: str, key: str, root: str) -> None:
    """Two launches, of which the second has a kernel that the pack lacks."""
    sys.path.insert(0, root)
    from benchmarks.gpu.checkout import link_packages

    with tempfile.TemporaryDirectory() as name:
        link_packages(Path(name) / "import")
        from benchmarks.gpu.native import Launcher, build_library
        from minicache.plugins.gpu_plan import Launch

        launcher = Launcher(build_library(Path(name), optimise=False), Path(pack))
        ctypes.CDLL("libcuda.so.1").cuCtxSetCurrent(ctypes.c_void_p(1))
        print("table", launcher.table([1, -2, 3]) != 0, launcher.table([]))
        values = (("p", 0xFEDC00000010000), ("i", -3), ("i", 32), ("l", 6000000000), ("f", 0.5))
        launches = launcher.load([Launch(key, (2, 3, 4), values)] * 2)
        launcher.enqueue(launches, 51)
        try:
            launcher.load([Launch("none|hint=1", (1, 1, 1), ())])
        except RuntimeError as error:
            print(error)


if __name__ == "__main__":
    main(*sys.argv[1:])
