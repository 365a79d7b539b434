"""The ONNX Runtime library, once for each choice of instruction set and maths.

It reads its environment once per process; a copy under another name is another library to the
loader, so that a run can compare choices with each other.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from minicache.plugins import ort_library_path

ISA, MATH = "MINICACHE_ISA", "MINICACHE_CPU_MATH"
ISAS = ("", "baseline", "avx2", "avx512", "avx512vnni")
MATHS = ("fp32", "int16", "int8")


@dataclass(frozen=True)
class Choice:
    """What a library is asked for; empty: what it takes by itself."""

    isa: str = ""
    math: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in (self.math, self.isa) if part)


class Libraries:
    """Copies of the library in a folder that outlives the sessions."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._source = folder, ort_library_path()
        self._paths: dict[Choice, Path] = {}

    def maths(self) -> tuple[str, ...]:
        """What ``MATH`` may be set to; a library that does not know it has fp32 only."""
        return MATHS if MATH.encode() in self._source.read_bytes() else ("fp32",)

    @contextmanager
    def chosen(self, choice: Choice = Choice()) -> Iterator[Path]:
        """The library's path, with the environment that it must be loaded and first used in."""
        if choice not in self._paths:
            self._paths[choice] = self._folder / f"{len(self._paths)}-{self._source.name}"
            shutil.copyfile(self._source, self._paths[choice])
        before = {name: os.environ.get(name) for name in (ISA, MATH)}
        try:
            for name, value in ((ISA, choice.isa), (MATH, choice.math)):
                if value:
                    os.environ[name] = value
            yield self._paths[choice]
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value

    def isa(self, choice: Choice = Choice()) -> str:
        """The instruction set that it runs on."""
        with self.chosen(choice) as path:
            library = ctypes.CDLL(str(path))
            library.minicache_isa.restype = ctypes.c_char_p
            name: bytes = library.minicache_isa()
            return name.decode()
