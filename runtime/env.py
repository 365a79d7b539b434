"""What a bug report needs to know of this machine; always prints, whatever is broken.

``python -m minicache.runtime.env`` works even where the command line's own imports fail.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

# Instruction sets that the kernels choose by (plugins/cpu), as /proc/cpuinfo spells them.
CPU_FLAGS = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16")
PACKAGES = (
    "minicache-onnx", "numpy", "onnx", "onnx-ir", "onnxruntime", "onnxruntime-gpu", "tokenizers",
    "jinja2", "rich", "scipy", "matplotlib", "torch", "transformers", "optimum", "optimum-onnx",
    "tensorrt", "tensorrt-rtx-cu13", "cuda-python", "triton",
)  # fmt: skip


def collect_env() -> dict[str, Any]:
    """Collects versions, the op library, and the machine; a failed probe says so in its place.

    Returns:
        Sections ``system``, ``packages``, ``onnxruntime``, ``library``, ``tensorrt``; JSON-ready.
    """
    return {
        "system": _probe(_system),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "onnxruntime": _probe(_onnxruntime),
        "library": _probe(_library),
        "tensorrt": _probe(_tensorrt),
    }


def print_env(env: dict[str, Any]) -> None:
    """Prints what ``collect_env`` returned, one fact per line."""
    for section, facts in env.items():
        print(f"{section}:")
        if not isinstance(facts, dict):
            print(f"  {facts}")
            continue
        for name, value in facts.items():
            text = ", ".join(map(str, value)) if isinstance(value, list) else value
            print(f"  {name}: {text}")


def _probe(collect: Callable[[], Any]) -> Any:
    # A broken installation is why this command is run: no probe may end it.
    try:
        return collect()
    except Exception as error:
        return f"not available: {type(error).__name__}: {error}"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except Exception:
        return None


def _system() -> dict[str, Any]:
    facts: dict[str, Any] = {
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "platform": platform.platform(),
    }
    cpuinfo = _read("/proc/cpuinfo")
    models = [line.split(":", 1)[1].strip() for line in cpuinfo if line.startswith("model name")]
    flags = next(
        (line.split(":", 1)[1].split() for line in cpuinfo if line.startswith("flags")), []
    )
    facts["cpu"] = models[0] if models else platform.machine()
    facts["cpu flags"] = [flag for flag in CPU_FLAGS if flag in flags]
    facts["cores"] = os.cpu_count()
    if hasattr(os, "sched_getaffinity"):
        facts["cores usable"] = len(os.sched_getaffinity(0))
    memory = {line.split(":")[0]: line.split()[1] for line in _read("/proc/meminfo") if ":" in line}
    for name, key in (("memory GB", "MemTotal"), ("memory available GB", "MemAvailable")):
        if key in memory:
            facts[name] = round(int(memory[key]) * 1024 / 1e9, 1)
    variables = sorted(name for name in os.environ if name.startswith("MINICACHE_"))
    facts["environment"] = [f"{name}={os.environ[name]}" for name in variables] or "none of ours"
    return facts


def _read(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _onnxruntime() -> dict[str, Any]:
    from minicache.runtime.ort import MINIMUM_ORT

    lowest = ".".join(map(str, MINIMUM_ORT))
    facts: dict[str, Any] = {"supported": f"{lowest} or later"}
    wheels = [name for name in ("onnxruntime", "onnxruntime-gpu") if _version(name)]
    facts["wheels"] = wheels or "none"
    if len(wheels) > 1:
        facts["warning"] = "two wheels own the same module; uninstall both, then install one"
    if importlib.util.find_spec("onnxruntime") is None:
        facts["status"] = 'not installed; install "minicache-onnx[cpu]" or "minicache-onnx[gpu]"'
        return facts
    import onnxruntime

    facts["version"] = onnxruntime.__version__
    facts["device"] = onnxruntime.get_device()
    facts["providers"] = list(onnxruntime.get_available_providers())
    facts["module"] = onnxruntime.__file__
    return facts


def _library() -> dict[str, Any]:
    from minicache.exporter import schemas
    from minicache.plugins.library import ort_library_path

    facts: dict[str, Any] = {"op": f"{schemas.DOMAIN}::{schemas.OP_TYPE} version {schemas.VERSION}"}
    facts["path"] = str(ort_library_path())
    library = ctypes.CDLL(facts["path"])
    for name, symbol, kind in (
        ("abi version", "minicache_abi_version", ctypes.c_int),
        ("instruction set", "minicache_isa", ctypes.c_char_p),
    ):
        try:
            function = getattr(library, symbol)
        except AttributeError:
            facts[name] = f"the library has no {symbol}"
            continue
        function.restype = kind
        value = function()
        facts[name] = value.decode() if isinstance(value, bytes) else value
    return facts


def _tensorrt() -> dict[str, Any]:
    from minicache.plugins.library import tensorrt_library_path
    from minicache.runtime.cuda_device import CudaDevice
    from minicache.runtime.engine_file import FLAVOURS
    from minicache.runtime.tensorrt_engine import load_tensorrt

    def device() -> str:
        found = CudaDevice()
        found.close()
        return f"{found.name}, compute capability {found.capability}"

    def version(flavour: str) -> str:
        return str(load_tensorrt(flavour).__version__)

    # Each for itself: an engine is often built where only some of them are.
    facts = {name: _probe(partial(version, flavour)) for flavour, name in FLAVOURS.items()}
    return {**facts, "plugin": _probe(lambda: str(tensorrt_library_path())), "GPU": _probe(device)}


if __name__ == "__main__":
    print_env(collect_env())
