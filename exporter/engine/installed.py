"""Which TensorRT is installed, and what its libraries need to be found."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

from minicache.runtime.errors import MissingDependencyError

TENSORRT, RTX = "tensorrt", "tensorrt_rtx"  # the names of their Python modules


def find_module(rtx: bool = False) -> str:
    """The module to build with: TensorRT where it is installed, else TensorRT-RTX.

    Args:
        rtx: only TensorRT-RTX will do.

    Raises:
        MissingDependencyError: not installed.
    """
    for name in (RTX,) if rtx else (TENSORRT, RTX):
        if importlib.util.find_spec(name) is not None:
            return name
    if rtx:
        raise MissingDependencyError(
            'TensorRT-RTX is not installed; pip install "minicache-onnx[tensorrt-rtx]"'
        )
    raise MissingDependencyError(
        "TensorRT is not installed; on a server or a Jetson: pip install "
        '"minicache-onnx[tensorrt]", for GeForce RTX or to try it without a GPU: pip install '
        '"minicache-onnx[tensorrt-rtx]"'
    )


def worker_environment(module: str, kernels: Path, scratch: Path) -> Mapping[str, str]:
    """The environment of the process that builds.

    Args:
        module: from ``find_module``.
        kernels: folder of the kernel pack, which the plugin takes into the engine.
        scratch: folder that lives as long as the process.
    """
    environment = {**os.environ, "MINICACHE_KERNELS": str(kernels), "PYTHONUNBUFFERED": "1"}
    folders = [scratch, *_library_folders(module, scratch)]
    given = environment.get("LD_LIBRARY_PATH")
    environment["LD_LIBRARY_PATH"] = ":".join([*map(str, folders), *([given] if given else [])])
    return environment


def _library_folders(module: str, scratch: Path) -> list[Path]:
    """Where TensorRT-RTX's own libraries are, each also under the name without a number.

    Its parser opens ``libtensorrt_rtx.so`` to find plugins, but the wheel has only
    ``libtensorrt_rtx.so.1``, and the process ends with "terminate called".
    """
    spec = importlib.util.find_spec("tensorrt_rtx_libs") if module == RTX else None
    places = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    for library in (path for place in places for path in sorted(place.glob("*.so.*"))):
        link = scratch / (library.name.partition(".so.")[0] + ".so")
        if not link.exists():
            link.symlink_to(library)
    return places
