"""Token eviction: which tokens a row lets go of, and how its state closes up.

Reading order: ``policy`` (what a policy is), ``streaming``, ``snapkv``, ``h2o``, ``choose``
(rounding), ``compact`` (moving), ``evictor`` (when). docs/operator.md, "Eviction", says what the
kernels make of it.
"""

from __future__ import annotations

from minicache.runtime.eviction.h2o import H2O
from minicache.runtime.eviction.parse import parse_policy
from minicache.runtime.eviction.policy import HeldTokens, Policy
from minicache.runtime.eviction.snapkv import SnapKV
from minicache.runtime.eviction.streaming import Streaming

__all__ = ["H2O", "HeldTokens", "Policy", "SnapKV", "Streaming", "parse_policy"]
