"""Finds the native libraries that were built with this installation."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from minicache.runtime.errors import MissingDependencyError

ORT_LIBRARY = "libminicache_ort.so"


def ort_library_path() -> Path:
    """Returns the path of the ONNX Runtime custom-op library.

    ``MINICACHE_ORT_LIBRARY`` overrides it, for a library built elsewhere.

    Raises:
        MissingDependencyError: the library was not built with this installation.
    """
    override = os.environ.get("MINICACHE_ORT_LIBRARY")
    if override:
        path = Path(override)
        if not path.is_file():
            raise MissingDependencyError(
                f"MINICACHE_ORT_LIBRARY names {override!r}, which is not a file; "
                "unset it or correct it"
            )
        return path
    # A data-only namespace portion: the same look-up works in a wheel and in an editable install.
    spec = importlib.util.find_spec("minicache._lib")
    places = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    for place in places:
        if (place / ORT_LIBRARY).is_file():
            return place / ORT_LIBRARY
    raise MissingDependencyError(
        f"{ORT_LIBRARY} is in none of {[str(place) for place in places]}; "
        "reinstall minicache-onnx with a C++17 compiler and cmake at hand"
    )
