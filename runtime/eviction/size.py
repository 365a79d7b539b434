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
_GIVES_BACK = ("ort-cpu",)  # targets whose rows' memory goes back to the system; a GPU's stays


def slots_per_row(manifest: Manifest, limit: int, cache_tokens: Any) -> int:
    """Slots of codes and of exact layers, per row.

    A policy that waits for the end of the prompt has room for all of the text by default; memory is
    given back when it has chosen.

    Args:
        manifest: of the exported folder.
        limit: tokens of the longest text.
        cache_tokens: what the session was given; None: what the policy needs.

    Raises:
        SessionError: no number of slots with which the policy can do, or given where nothing is
            evicted.
    """
    if not manifest.eviction:
        if cache_tokens is not None:
            raise SessionError(
                f"cache_tokens is {cache_tokens!r}, but this export evicts nothing: its rows hold "
                "all of max_sequence_length; leave it out, or export with --evict"
            )
        return round_capacity(limit)
    policy, all_of_it = EvictionEntry.from_dict(manifest.eviction).policy, round_capacity(limit)
    if cache_tokens is None:
        waits = policy.spare is None
        return all_of_it if waits else min(all_of_it, least_slots(policy, PROMPT_CALL))
    checks.whole_number("cache_tokens", cache_tokens)
    slots = min(round_capacity(int(cache_tokens)), all_of_it)
    if slots < min(all_of_it, least_slots(policy, 1)):
        raise SessionError(
            f"cache_tokens is {cache_tokens}; {policy.text} needs {least_slots(policy, 1)} or more"
        )
    return slots


def steady_slots(manifest: Manifest, context: int, generated: int = 0) -> int:
    """Slots per row that take memory once a text of ``context`` tokens was read.

    On a GPU they are those that a session allocates: what is cut back there stays allocated.

    Args:
        manifest: of the exported folder.
        context: tokens of the text.
        generated: how many of them came after the prompt; a policy that chooses once, at its
            end, keeps them all.
    """
    slots = slots_per_row(manifest, context, None)
    if not manifest.eviction or manifest.target not in _GIVES_BACK:
        return slots
    policy = EvictionEntry.from_dict(manifest.eviction).policy
    return min(slots, least_slots(policy, max(generated, 1))) if policy.spare is None else slots
