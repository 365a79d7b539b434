"""Builds the launcher's test program and the fake CUDA driver, and runs lines through them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from minicache.plugins.triton.kernel_pack import PackedImage, PackedKernel, write_pack
from minicache.plugins.triton.signatures import Kind

HERE = Path(__file__).parent
PLUGINS = HERE.parents[2] / "plugins"
SOURCES = ("choose_image", "device_table", "driver", "kernel_pack", "launcher", "module_cache")
ARCHITECTURES = (80, 86, 87, 89, 90, 100, 120)

Argument = tuple[str, Kind, int]
PARAMETERS: tuple[Argument, ...] = (
    ("out_ptr", "p", 16),
    ("count", "i", 1),
    ("capacity", "i", 16),
    ("stride", "l", 1),
    ("scale", "f", 1),
)
KEY = "scale|T=fp16|BLOCK=64"
ARGUMENTS = "p:10000 i:-3 i:32 l:6000000000 f:0.5"  # as drive_launcher.cpp takes them
LAUNCH = f"launch {KEY}|hint=1 2 3 4 {ARGUMENTS}"


def build_tools(folder: Path, *options: str) -> None:
    """Compiles ``driven`` and ``libcuda.so.1`` into a folder; skips without a compiler."""
    # One unit: the headers of the standard library are what takes the time.
    parts = [*(PLUGINS / "gpu" / f"{name}.cpp" for name in SOURCES), HERE / "drive_launcher.cpp"]
    (folder / "driven.cpp").write_text("".join(f'#include "{part}"\n' for part in parts))
    build_fake_driver(folder, *options)
    include = [f"-I{PLUGINS}", f"-I{PLUGINS / 'include'}"]
    run_compiler(folder, *options, *include, "driven.cpp", "-pthread", "-ldl", "-o", "driven")


def build_fake_driver(folder: Path, *options: str) -> None:
    """Compiles ``libcuda.so.1`` into a folder; skips without a compiler."""
    source = str(HERE / "fake_cuda.cpp")
    run_compiler(folder, *options, "-shared", "-fPIC", source, "-o", "libcuda.so.1")


def run_compiler(folder: Path, *arguments: str) -> None:
    """Runs the C++ compiler in a folder; skips without one."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    command = [compiler, "-std=c++17", "-g", "-Wall", "-Wextra", "-Werror", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def drive(
    tools: Path,
    lines: Sequence[str],
    *,
    log: Path | None = None,
    driver: bool = True,
    **told: object,
) -> tuple[list[str], list[str]]:
    """Runs lines; returns the answers and what the driver was called for.

    Args:
        tools: folder of ``build_tools``.
        lines: see drive_launcher.cpp.
        log: file for the fake driver's lines, emptied first.
        driver: whether the fake driver is found.
        told: FAKE_CUDA_* variables without that prefix.
    """
    environment = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    environment |= {f"FAKE_CUDA_{key.upper()}": str(value) for key, value in told.items()}
    if driver:
        environment["LD_LIBRARY_PATH"] = str(tools)
    if log is not None:
        log.write_text("")
        environment["FAKE_CUDA_LOG"] = str(log)
    done = subprocess.run(
        [tools / "driven"],
        input="\n".join(lines) + "\n",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout.splitlines(), log.read_text().splitlines() if log is not None else []


def make_image(arch: int, *, ptx: bool = False, shared: int = 512, hint: int = 1) -> PackedImage:
    """An image that the fake driver loads: it tells its name and its parameters."""
    label = f"{'ptx' if ptx else 'sm'}_{arch}_hint{hint}"
    kinds = "".join(kind for _, kind, _ in PARAMETERS) + "pp"
    return PackedImage(arch, ptx, 4, shared, f"IMAGE {label} {kinds}\0".encode())


def make_kernel(
    *,
    hint: int = 1,
    architectures: Sequence[int] = ARCHITECTURES,
    ptx: bool = True,
    shared: int = 512,
) -> PackedKernel:
    """The test's kernel for some architectures."""
    images = [make_image(arch, shared=shared, hint=hint) for arch in architectures]
    if ptx:
        images.append(make_image(80, ptx=True, shared=shared, hint=hint))
    arguments = tuple((name, kind, divisor if hint else 1) for name, kind, divisor in PARAMETERS)
    return PackedKernel(f"{KEY}|hint={hint}", "scale", arguments, 2, tuple(images))


def write_kernels(folder: Path, *kernels: PackedKernel) -> Path:
    """Writes a pack; returns its path."""
    write_pack(folder, kernels, {})
    return folder / "kernels.bin"
