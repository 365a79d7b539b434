"""How many slots the rows of a session get."""

from __future__ import annotations

from typing import Any

from minicache.runtime import checks
from minicache.runtime.cache import round_capacity
from minicache.runtime.errors import SessionError
from minicache.runtime.eviction.entry import EvictionEntry
from minicache.runtime.eviction.evictor import least_slots
from minicache.runtime.manifest import Manifest

PROMPT_CALL = 512  # tokens that a call of a prompt brings


def slots_per_row(manifest: Manifest, limit: int, cache_tokens: Any) -> int:
    """Slots of codes and of exact layers, per row.

    A policy that waits for the end of the prompt has room for all of the text by default; memory is
    given back when it has chosen.

    Args:
        manifest: of the exported folder.
        limit: tokens of the longest text.
        cache_tokens: what the session was given; None: what the policy needs.

    Raises:
        SessionError: not a whole number, or given where nothing is evicted.
    """
    if not manifest.eviction:
        if cache_tokens is not None:
            raise SessionError(
                f"cache_tokens is {cache_tokens!r}, but this export evicts nothing: its rows hold "
                "all of max_sequence_length; leave it out, or export with --evict"
            )
        return round_capacity(limit)
    policy = EvictionEntry.from_dict(manifest.eviction).policy
    if cache_tokens is not None:
        checks.whole_number("cache_tokens", cache_tokens)
        return round_capacity(int(cache_tokens))
    if policy.spare is None:
        return round_capacity(max(limit, least_slots(policy, 1)))
    return least_slots(policy, PROMPT_CALL)
