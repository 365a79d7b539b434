"""Finds the native libraries that were built with this installation."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from minicache.runtime.errors import MissingDependencyError

ORT_LIBRARY = "libminicache_ort.so"
TENSORRT_LIBRARY = "libminicache_trt.so"


def ort_library_path() -> Path:
    """Returns the path of the ONNX Runtime custom-op library.

    ``MINICACHE_ORT_LIBRARY`` overrides it, for a library built elsewhere.

    Raises:
        MissingDependencyError: the library was not built with this installation.
    """
    return _find(ORT_LIBRARY, "MINICACHE_ORT_LIBRARY", "a C++17 compiler and cmake at hand")


def tensorrt_library_path() -> Path:
    """Returns the path of the TensorRT plugin library.

    ``MINICACHE_TRT_LIBRARY`` overrides it, for a library built elsewhere.

    Raises:
        MissingDependencyError: the library was not built with this installation.
    """
    needs = "TensorRT's headers at hand (cmake option TENSORRT_INCLUDE_DIR)"
    return _find(TENSORRT_LIBRARY, "MINICACHE_TRT_LIBRARY", needs)


def _find(name: str, variable: str, needs: str) -> Path:
    override = os.environ.get(variable)
    if override:
        path = Path(override)
        if not path.is_file():
            raise MissingDependencyError(
                f"{variable} names {override!r}, which is not a file; unset it or correct it"
            )
        return path
    # A data-only namespace portion: the same look-up works in a wheel and in an editable install.
    spec = importlib.util.find_spec("minicache._lib")
    places = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    for place in places:
        if (place / name).is_file():
            return place / name
    raise MissingDependencyError(
        f"{name} is in none of {[str(place) for place in places]}; "
        f"reinstall minicache-onnx with {needs}"
    )
