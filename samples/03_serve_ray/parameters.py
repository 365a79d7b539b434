"""Documented parameters of OpenAI's API that are ignored, or taken only where they ask for nothing.

Everything else is unknown and refused by name: a parameter that is silently left out gives answers
that look as if it had been heeded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from errors import ApiError

# About bookkeeping, not about the answer.
IGNORED = frozenset(
    ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")
)
# These are refused unless they have one of the values that ask for nothing; null always does.
IDLE: Mapping[str, tuple[Any, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": (),
    "web_search_options": (),
}


def screen(body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters that matter here; null means that a parameter was left out.

    Raises:
        ApiError: one asks for what this server cannot do.
    """
    kept = {}
    for name, value in body.items():
        if value is None or name in IGNORED:
            continue
        if name not in IDLE:
            kept[name] = value
        elif not any(_same(value, idle) for idle in IDLE[name]):
            idle = " or ".join(map(json.dumps, IDLE[name]))
            hint = f"leave it out, or give {idle}" if idle else "leave it out"
            raise ApiError(400, f"{name} is not supported; {hint}", name, "unsupported_parameter")
    return kept


def _same(value: Any, idle: Any) -> bool:
    if isinstance(value, bool) or isinstance(idle, bool):  # 0 is not False here
        return value is idle
    return bool(value == idle)
