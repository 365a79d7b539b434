"""What a compiled kernel takes of a GPU, read from what was emitted, and what it may take."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from minicache.runtime.errors import MiniCacheError

# Bytes of shared memory that a block may ask for, by architecture. CUDA C++ Programming Guide,
# "Technical Specifications per Compute Capability": maximum per thread block.
SHARED_LIMITS = {
    80: 163 * 1024,
    86: 99 * 1024,
    87: 163 * 1024,
    89: 99 * 1024,
    90: 227 * 1024,
    100: 227 * 1024,
    120: 99 * 1024,
}

_REGISTERS = 65536  # of a multiprocessor, which a block may take whole: same table
_MOST_REGISTERS = 255  # of a thread

_PTX_KINDS = {"u64": "l", "b64": "l", "u32": "i", "b32": "i", "f32": "f"}


class BuildError(MiniCacheError):
    """A kernel does not compile, or not to what the launcher can run."""


@dataclass(frozen=True)
class Resources:
    """Counts per compiled kernel.

    Attributes:
        registers: per thread.
        stack: bytes of local memory per thread; not all of it is spills (a sine's range reduction).
        spills: bytes per thread of registers that went to local memory: stores and loads.
        shared: bytes of shared memory per block.
        copies_16: asynchronous copies to shared memory of 16 bytes (``cp.async``) in the code.
        tensor_core: matrix products on tensor cores in the code.
        wide_loads: loads of 16 bytes from global memory in the code.
    """

    registers: int
    stack: int
    spills: int
    shared: int
    copies_16: int
    tensor_core: int
    wide_loads: int


def max_registers(warps: int) -> int:
    """The most registers that a thread may have, so that a block of so many warps can run."""
    return min(_MOST_REGISTERS, _REGISTERS // (32 * warps) // 8 * 8)


def parameter_kinds(ptx: str) -> str:
    """The parameters of the entry in order, one letter each: ``p``, ``l``, ``i``, ``f``."""
    match = re.search(r"\.visible \.entry \w+\(([^)]*)\)", ptx)
    if match is None:
        raise BuildError("the emitted PTX has no entry; this version of triton cannot be used")
    kinds = ""
    for line in match[1].split(","):
        if not line.strip():
            continue
        words = line.split()
        kind = _PTX_KINDS.get(words[1].removeprefix(".")) if len(words) > 1 else None
        if kind is None:
            raise BuildError(f"the emitted PTX has a parameter {line.strip()!r} of unknown type")
        kinds += "p" if ".ptr" in words else kind
    return kinds


def measure(
    ptx: str, cubin: bytes, *, symbol: str, shared: int, tools: Path, arch: str
) -> Resources:
    """Reads the resources of a compiled kernel.

    Args:
        ptx: its intermediate code.
        cubin: its machine code.
        symbol: its name in both.
        shared: bytes of shared memory that its compiler asks for.
        tools: folder of ``cuobjdump`` and ``ptxas``.
        arch: as ptxas takes it, ``sm_90a``.
    """
    text = _run([tools / "cuobjdump", "--dump-resource-usage"], cubin)
    counts = r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)"
    match = re.search(rf"Function {symbol}:\s+{counts}", text)
    if match is None:
        raise BuildError(f"cuobjdump says nothing of registers: {text.strip()[:200]!r}")
    # What it calls SHARED is the kilobyte that the system keeps from sm_90 on; ours is dynamic.
    registers, stack, _, local = (int(group) for group in match.groups())
    return Resources(
        registers=registers,
        stack=stack,
        spills=_spills(ptx, tools, arch) if stack or local else 0,
        shared=shared,
        copies_16=len(re.findall(r"cp\.async\.c[ag]\.shared\.global[^;]*?, 0x10", ptx)),
        tensor_core=len(re.findall(r"\b(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma)\b", ptx)),
        wide_loads=len(re.findall(r"ld\.global\S*\.v4\.[bu]32", ptx)),
    )


def _spills(ptx: str, tools: Path, arch: str) -> int:
    """Bytes of spill stores and loads; without a stack there are none, and ptxas need not run."""
    command: list[Path | str] = [
        tools / "ptxas",
        "-v",
        f"--gpu-name={arch}",
        "--regAllocOptLevel=2",
    ]
    text = _run([*command, "-o", "/dev/null"], ptx.encode())
    return sum(int(count) for count in re.findall(r"(\d+) bytes spill (?:stores|loads)", text))


def _run(command: list[Path | str], data: bytes) -> str:
    """What a tool says of a file with these bytes."""
    with tempfile.NamedTemporaryFile() as file:  # cuobjdump takes no pipe
        file.write(data)
        file.flush()
        done = subprocess.run([*command, file.name], capture_output=True, check=False)
    text = (done.stdout + done.stderr).decode(errors="replace")
    if done.returncode:
        raise BuildError(f"{Path(command[0]).name} failed: {text.strip()[:400]}")
    return text


def check_resources(name: str, arch: int, found: Resources, *, hinted: bool) -> None:
    """Refuses what would not run, or not fast.

    Args:
        name: of the kernel, for the message.
        arch: 10 * major + minor.
        found: its resources.
        hinted: False for the variants that run where a tensor is not aligned: they may spill.

    Raises:
        BuildError: too much shared memory, or spilled registers.
    """
    limit = SHARED_LIMITS[arch]
    if found.shared > limit:
        raise BuildError(
            f"{name} needs {found.shared} bytes of shared memory, sm_{arch} has {limit}; "
            "use smaller blocks or fewer stages"
        )
    if found.spills and hinted:
        raise BuildError(
            f"{name} spills {found.spills} bytes of registers on sm_{arch} "
            f"({found.registers} in use); use smaller blocks or more warps"
        )
