"""Drives exported models: sessions, the cache they own, generation and evaluation.

Reading order: ``session`` (what users call) with ``row_calls``, ``text_calls`` and ``state_calls``
(what it can do with its rows), ``batch`` (requests that come and go), ``continuation`` (one text
that grows), ``manifest`` (what an exported folder says about itself), ``open_model`` and ``cache``
(the state buffers), ``row_state`` and ``state_file`` (saved prefixes), ``binding`` and ``ort``
(ONNX Runtime), ``open_engine`` and ``tensorrt_model`` (TensorRT), ``evaluate``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minicache.runtime.batch import Batch
    from minicache.runtime.batch_request import BatchToken
    from minicache.runtime.env import collect_env
    from minicache.runtime.errors import BatchFullError, MiniCacheError, StateFileError
    from minicache.runtime.evaluate import EvaluationResult, evaluate_folder
    from minicache.runtime.generate_batch import Completion
    from minicache.runtime.generated_token import GeneratedToken, TokenLogprob
    from minicache.runtime.generation import GenerationStats
    from minicache.runtime.manifest import Manifest
    from minicache.runtime.retention import RetentionStats
    from minicache.runtime.row_state import RowState
    from minicache.runtime.rows import Rows
    from minicache.runtime.session import Session
    from minicache.runtime.verification import Verification

__all__ = [
    "Batch",
    "BatchFullError",
    "BatchToken",
    "Completion",
    "EvaluationResult",
    "GeneratedToken",
    "GenerationStats",
    "Manifest",
    "MiniCacheError",
    "RetentionStats",
    "RowState",
    "Rows",
    "Session",
    "StateFileError",
    "TokenLogprob",
    "Verification",
    "collect_env",
    "evaluate_folder",
]
_HOMES = {
    "Verification": "verification",
    "StateFileError": "errors",
    "RowState": "row_state",
    "Completion": "generate_batch",
    "Batch": "batch",
    "BatchFullError": "errors",
    "BatchToken": "batch_request",
    "EvaluationResult": "evaluate",
    "GeneratedToken": "generated_token",
    "GenerationStats": "generation",
    "Manifest": "manifest",
    "MiniCacheError": "errors",
    "RetentionStats": "retention",
    "Rows": "rows",
    "Session": "session",
    "TokenLogprob": "generated_token",
    "collect_env": "env",
    "evaluate_folder": "evaluate",
}


def __getattr__(name: str) -> Any:
    # Imported on first use: `minicache.runtime.errors` is read by every package.
    if name in _HOMES:
        return getattr(importlib.import_module(f"minicache.runtime.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
