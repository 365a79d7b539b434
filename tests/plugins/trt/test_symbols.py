"""What the plugin library shows to others, and what it needs of them."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from minicache.plugins import ort_library_path

ENTRY_POINTS = {"getCreators", "setLoggerFinder", "minicache_abi_version"}


def run(*command: str | Path) -> str:
    """Output of a program of binutils; skips without it."""
    if shutil.which(str(command[0])) is None:
        pytest.skip(f"no {command[0]}")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_only_the_entry_points_are_exported(trt_library: Path) -> None:
    """Nothing can be merged with TensorRT's or ONNX Runtime's symbols."""
    lines = run("nm", "-D", "--defined-only", trt_library).splitlines()
    assert {line.split()[-1] for line in lines} == ENTRY_POINTS


def test_neither_tensorrt_nor_cuda_is_linked(trt_library: Path) -> None:
    """Both are found at run time, so that one library serves every version, and loads anywhere."""
    undefined = run("nm", "-D", "--undefined-only", trt_library)
    assert not re.search(r"nvinfer|getLogger|getPluginRegistry|\bcu[A-Z]|\bcuda", undefined)
    needed = re.findall(r"NEEDED.*\[(.*?)\]", run("readelf", "-d", trt_library))
    system = r"lib(c|m|dl|pthread|stdc\+\+|gcc_s)\.so.*|ld-linux.*"
    assert [name for name in needed if not re.fullmatch(system, name)] == []


def test_it_loads_beside_the_other_library(trt_library: Path) -> None:
    """Both tell the same version of the interface."""
    versions = [
        ctypes.CDLL(str(path)).minicache_abi_version() for path in (trt_library, ort_library_path())
    ]
    assert versions[0] == versions[1] > 0
