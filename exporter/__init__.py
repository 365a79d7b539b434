"""Rewrites decoder-LLM ONNX graphs so that their KV cache lives in merged, compressed buffers.

Reading order: ``pipeline`` (the passes and why in this order), ``sites`` (what is found in a
graph), ``schemas`` (the op every target implements), ``plan`` (which layers share a code),
``targets``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minicache.exporter.options import ExportOptions
    from minicache.exporter.pipeline import ExportResult, export_model

__all__ = ["ExportOptions", "ExportResult", "export_model"]
_HOMES = {"ExportOptions": "options", "ExportResult": "pipeline", "export_model": "pipeline"}


def __getattr__(name: str) -> Any:
    # Imported on first use: reading the schema table must not load onnx.
    if name in _HOMES:
        return getattr(importlib.import_module(f"minicache.exporter.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
