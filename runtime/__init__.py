"""Drives exported models: sessions, the cache they own, generation and evaluation.

Reading order: ``session`` (what users call), ``manifest`` (what an exported folder says about
itself), ``open_model`` and ``cache`` (the state buffers), ``binding`` and ``ort`` (ONNX Runtime),
``open_engine`` and ``tensorrt_model`` (TensorRT), ``generation``, ``evaluate``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minicache.runtime.env import collect_env
    from minicache.runtime.errors import MiniCacheError
    from minicache.runtime.evaluate import EvaluationResult, evaluate_folder
    from minicache.runtime.generation import GeneratedToken, GenerationStats
    from minicache.runtime.manifest import Manifest
    from minicache.runtime.retention import RetentionStats
    from minicache.runtime.session import Session

__all__ = [
    "EvaluationResult",
    "GeneratedToken",
    "GenerationStats",
    "Manifest",
    "MiniCacheError",
    "RetentionStats",
    "Session",
    "collect_env",
    "evaluate_folder",
]
_HOMES = {
    "EvaluationResult": "evaluate",
    "GeneratedToken": "generation",
    "GenerationStats": "generation",
    "Manifest": "manifest",
    "MiniCacheError": "errors",
    "RetentionStats": "retention",
    "Session": "session",
    "collect_env": "env",
    "evaluate_folder": "evaluate",
}


def __getattr__(name: str) -> Any:
    # Imported on first use: `minicache.runtime.errors` is read by every package.
    if name in _HOMES:
        return getattr(importlib.import_module(f"minicache.runtime.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
