"""Builds the plugin's test program, and talks to it line by line (``drive_plugin.cpp``)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import TracebackType

import pytest

from minicache.plugins import tensorrt_library_path
from tests.plugins.gpu.fake_driver import build_fake_driver, run_compiler

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
HEADER = "NvInferRuntime.h"


def build_plugin_tools(folder: Path) -> None:
    """Compiles ``drive_plugin`` and a fake CUDA driver; skips without TensorRT's headers."""
    include = ["-isystem", str(find_headers()), "-isystem", str(ROOT / "plugins/trt/cuda_types")]
    build_fake_driver(folder)
    run_compiler(folder, *include, str(HERE / "drive_plugin.cpp"), "-ldl", "-o", "drive_plugin")


def find_headers() -> Path:
    """Folder of TensorRT's headers: named by ``TENSORRT_INCLUDE_DIR``, or left by the build."""
    given = os.environ.get("TENSORRT_INCLUDE_DIR")
    downloaded = ROOT.glob("build/*/kernel-lens-headers/kernel_lens/include/tensorrt")
    for place in [Path(given)] if given else sorted(downloaded):
        if (place / HEADER).is_file():
            return place
    pytest.skip(f"no {HEADER}: the library was built elsewhere; set TENSORRT_INCLUDE_DIR")


class PluginProcess:
    """The plugin library in a process of its own, driven as TensorRT would.

    Args:
        tools: folder of ``build_plugin_tools``.
        kernels: what ``MINICACHE_KERNELS`` names; None: nothing.
        log: file for the fake driver's lines; None: there is no driver.
        told: FAKE_CUDA_* variables without that prefix.
    """

    def __init__(
        self, tools: Path, kernels: Path | None = None, log: Path | None = None, **told: object
    ) -> None:
        left_out = ("LD_LIBRARY_PATH", "MINICACHE_KERNELS")
        environment = {k: v for k, v in os.environ.items() if k not in left_out}
        environment |= {f"FAKE_CUDA_{key.upper()}": str(value) for key, value in told.items()}
        if kernels is not None:
            environment["MINICACHE_KERNELS"] = str(kernels)
        if log is not None:
            log.write_text("")
            environment |= {"FAKE_CUDA_LOG": str(log), "LD_LIBRARY_PATH": str(tools)}
        self._log, self._read = log, 0
        self._process = subprocess.Popen(
            [tools / "drive_plugin", tensorrt_library_path()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def ask(self, line: str) -> str:
        """The answer to a line, whatever it is."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the process died of {line!r}"
        return answer.strip()

    def do(self, line: str) -> str:
        """The answer to a line that succeeds."""
        answer = self.ask(line)
        assert answer == "ok" or answer.startswith("ok "), f"{line[:200]!r}: {answer}"
        return answer[3:]

    def refuse(self, line: str) -> str:
        """The sentence that a failing line is answered with."""
        answer = self.ask(line)
        assert answer.startswith("failed"), f"{line[:200]!r}: {answer}"
        return answer[7:].strip()

    def driver_calls(self) -> list[str]:
        """What the fake driver was called for since the last request."""
        assert self._log is not None
        lines = self._log.read_text().splitlines()
        new, self._read = lines[self._read :], len(lines)
        return new

    def close(self) -> str:
        """Ends the process; returns what it wrote to standard error."""
        _, errors = self._process.communicate(timeout=60)
        assert self._process.returncode == 0, errors
        return errors

    def __enter__(self) -> PluginProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._process.kill()
            self._process.communicate()
        elif self._process.returncode is None:
            self.close()
