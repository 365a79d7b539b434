"""What the launcher refuses, and how it tells what the driver refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.plugins.gpu.fake_driver import ARGUMENTS, KEY, LAUNCH, drive, make_kernel, write_kernels


def test_old_and_unserved_devices_are_refused(launcher_tools: Path, tmp_path: Path) -> None:
    """Too old is another sentence than not compiled for it."""
    pack = write_kernels(tmp_path, make_kernel(architectures=(80, 90), ptx=False))
    lines = [f"pack {pack}", "context 1", LAUNCH]
    answers, _ = drive(launcher_tools, lines, capability=75)
    assert "compute capability 7.5, the kernels need 8.0 or newer" in answers[-1]
    answers, _ = drive(launcher_tools, lines, capability=103)
    assert re.search(r"10\.3, and kernel '.*' was compiled for sm_80, sm_90 only", answers[-1])


@pytest.mark.parametrize("grid", ["2147483648 1 1", "1 65536 1", "1 1 65536"])
def test_too_large_grids_are_refused(launcher_tools: Path, tmp_path: Path, grid: str) -> None:
    """Before CUDA would, and with the kernel's name."""
    pack = write_kernels(tmp_path, make_kernel())
    lines = [f"pack {pack}", "context 1", f"launch {KEY}|hint=1 {grid} {ARGUMENTS}"]
    answers, _ = drive(launcher_tools, lines)
    assert re.search(r"kernel 'scale.*' would get \d+ blocks along [xyz]", answers[-1])


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        (f"launch {KEY}|hint=1 1 1 1 p:10000 i:1 i:32 l:1", "takes 5 arguments, 4 were given"),
        (
            f"launch {KEY}|hint=1 1 1 1 p:10000 l:1 i:32 l:1 f:1",
            "argument 'count' of kernel 'scale|T=fp16|BLOCK=64|hint=1' is a 32-bit integer, "
            "a 64-bit integer was given",
        ),
        (
            f"launch {KEY}|hint=1 1 1 1 i:1 i:1 i:32 l:1 f:1",
            "argument 'out_ptr' of kernel 'scale|T=fp16|BLOCK=64|hint=1' is a pointer",
        ),
        (f"launch {KEY}|D=4|hint=1 1 1 1 p:0", f"has no kernel '{KEY}|D=4|hint=1'; export"),
        (f"prepare {KEY}|D=4|hint=1 1 1 1 p:0", f"has no kernel '{KEY}|D=4|hint=1'; export"),
    ],
    ids=["count", "kind", "pointer", "key", "prepare"],
)
def test_wrong_launches_are_refused(
    launcher_tools: Path, tmp_path: Path, launch: str, words: str
) -> None:
    """Arguments are checked against the pack; the answer names kernel and argument."""
    pack = write_kernels(tmp_path, make_kernel())
    answers, _ = drive(launcher_tools, [f"pack {pack}", "context 1", launch])
    assert words in answers[-1]


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (
            {"fail": "cuModuleLoadDataEx:209"},
            "(sm_80) cannot be loaded (CUDA_ERROR_NO_BINARY_FOR_GPU: as told, driver for CUDA "
            "12.4: line 7: bad opcode); the driver may be older than the kernels",
        ),
        ({"fail": "cuModuleGetFunction:500"}, "(sm_80) has no function 'scale'"),
        ({"fail": "cuFuncSetAttribute:1"}, "gets no 90000 bytes of shared memory"),
        ({"fail": "cuLaunchKernel:700"}, "cannot be launched"),
        ({"fail": "cuInit:100"}, "the CUDA driver does not start"),
        ({"shared": 65536}, "needs 90000 bytes of shared memory, this GPU gives a block 65536"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_failures_of_the_driver_surface(
    launcher_tools: Path, tmp_path: Path, told: dict[str, object], words: str
) -> None:
    """Nothing is launched; what was loaded in vain is unloaded."""
    pack = write_kernels(tmp_path, make_kernel(shared=90000))
    lines = [f"pack {pack}", "context 1", LAUNCH]
    answers, calls = drive(launcher_tools, lines, log=tmp_path / "log", **told)
    assert answers[:2] == ["ok", "ok"]
    assert words in answers[-1]
    assert not any("launch" in call for call in calls)
    assert len([call for call in calls if " load " in call]) == len(
        [call for call in calls if " unload " in call]
    )


def test_a_missing_driver_is_told_at_the_first_launch(launcher_tools: Path, tmp_path: Path) -> None:
    """A launcher can be made without one; each launch says what is missing."""
    pack = write_kernels(tmp_path, make_kernel())
    answers, _ = drive(launcher_tools, [f"pack {pack}", LAUNCH, "close"], driver=False)
    if answers[1].startswith("error: this thread has no current"):
        pytest.skip("this machine has a CUDA driver")
    assert answers[0] == answers[2] == "ok"
    assert "libcuda.so.1 was not found" in answers[1]
    assert "install the NVIDIA driver" in answers[1]


def test_a_thread_without_context_is_told(launcher_tools: Path, tmp_path: Path) -> None:
    """Instead of launching into nowhere."""
    pack = write_kernels(tmp_path, make_kernel())
    answers, _ = drive(launcher_tools, [f"pack {pack}", LAUNCH])
    assert "no current CUDA context; call cudaSetDevice" in answers[-1]


def test_a_table_that_does_not_fit_is_told(launcher_tools: Path, tmp_path: Path) -> None:
    """Nothing is left allocated where the copy fails; an empty table is no memory at all."""
    pack = write_kernels(tmp_path, make_kernel())
    lines = [f"pack {pack}", "context 1", "table 1 2"]
    answers, _ = drive(launcher_tools, lines, fail="cuMemAlloc_v2:2")
    assert "a table of 8 bytes does not fit into GPU memory (CUDA_ERROR_OUT_OF_MEMORY" in answers[2]
    answers, calls = drive(launcher_tools, lines, log=tmp_path / "log", fail="cuMemcpyHtoD_v2:1")
    assert "a table of 8 bytes cannot be copied to the GPU" in answers[2]
    assert calls == ["ctx1 allocate 8 at 11000", "ctx1 free 11000"]
    answers, calls = drive(launcher_tools, [*lines[:2], "table"], log=tmp_path / "log")
    assert answers[2] == "ok 0 0"
    assert calls == []
