"""Reads what ``--evict`` takes."""

from __future__ import annotations

import re

from minicache.runtime.errors import PlanError
from minicache.runtime.eviction.h2o import H2O
from minicache.runtime.eviction.policy import Policy
from minicache.runtime.eviction.snapkv import SnapKV
from minicache.runtime.eviction.streaming import Streaming

FORMS = "streaming:SINKS+WINDOW, snapkv:BUDGET or h2o:BUDGET"
_LARGEST = 1 << 24  # tokens; a longer number is a slip


def parse_policy(text: str) -> Policy:
    """Returns the policy that ``text`` names, e.g. ``streaming:4+1024``.

    Raises:
        PlanError: another form, or numbers out of range.
    """
    match = re.fullmatch(r"(streaming):(\d{1,9})\+(\d{1,9})|(snapkv|h2o):(\d{1,9})", text)
    if match is None:
        raise PlanError(f"--evict {text!r} is none of {FORMS}")
    if match[1]:
        sinks, window = int(match[2]), int(match[3])
        _check_size(text, sinks + window)
        return Streaming(sinks, window)
    budget = int(match[5])
    _check_size(text, budget)
    return SnapKV(budget) if match[4] == "snapkv" else H2O(budget)


def _check_size(text: str, budget: int) -> None:
    if not 1 <= budget <= _LARGEST:
        raise PlanError(f"--evict {text!r} keeps {budget} tokens; give 1..{_LARGEST}")
