"""Drives exported models: sessions, the cache they own, generation and evaluation.

Reading order: ``session`` (what users call), ``manifest`` (what an exported folder says about
itself), ``cache`` (the state buffers), ``ort`` (the ONNX Runtime binding), ``generation``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minicache.runtime.errors import MiniCacheError
    from minicache.runtime.session import Session

__all__ = ["MiniCacheError", "Session"]
_HOMES = {"MiniCacheError": "minicache.runtime.errors", "Session": "minicache.runtime.session"}


def __getattr__(name: str) -> Any:
    # Imported on first use: `minicache.runtime.errors` is read by every package.
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
