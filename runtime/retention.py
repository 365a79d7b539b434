"""How many tokens a session keeps in full because their layers disagree (paper, section 3.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.runtime.cache import Cache
from minicache.runtime.manifest import Manifest


@dataclass(frozen=True)
class RetentionStats:
    """Tokens of one coded merge group, over all rows; ``n_retained + n_merged == total``.

    Attributes:
        group: number of the merge group.
        n_retained: coded tokens that are read from the side buffer in full.
        n_merged: coded tokens that are read from their code.
        total: tokens that have left the exact window, without the sinks and evicted ones.
        capacity: tokens M that are read in full per row at most; 0 without retention.
        full: whether a row has no room left.
    """

    group: int
    n_retained: int
    n_merged: int
    total: int
    capacity: int
    full: bool


def coded_range(
    lengths: npt.NDArray[np.int32], sinks: int, window: int
) -> tuple[int, npt.NDArray[np.int64]]:
    """Positions [N, c0) that are read as codes when a row holds ``lengths`` tokens.

    Returns:
        N and c0 [B]; c0 < N where nothing is coded yet.
    """
    past = lengths.astype(np.int64)
    return sinks, np.minimum(np.maximum(sinks, past - window), past)


def retention_stats(
    manifest: Manifest, cache: Cache, lengths: npt.NDArray[np.int32]
) -> list[RetentionStats]:
    """Counts the retained tokens of every coded group.

    Args:
        manifest: of the exported folder.
        cache: the session's buffers.
        lengths: [B] tokens per row.
    """
    stats = []
    for group in cache.groups:
        tensors: dict[str, npt.NDArray[Any]] = cache.group(group)
        if "key_code" not in tensors:
            continue
        # exact slots = N sinks + a ring of W + X slots
        sinks = tensors["exact_key"].shape[3] - manifest.window - manifest.rewind_slack
        first, end = coded_range(lengths, sinks, manifest.window)
        evicted = tensors["evicted"][:, -1] if "evicted" in tensors else 0
        total = int(np.maximum(end - first - evicted, 0).sum())
        retained = np.zeros(len(lengths), np.int64)
        capacity = 0
        if "retained_position" in tensors:
            position = tensors["retained_position"]
            capacity = position.shape[1] - extra_slots(manifest, group)
            # An entry at or beyond c0 is left from a call that was taken back: free.
            held = ((position >= first) & (position < end[:, None])).sum(axis=1)
            retained = np.minimum(held, capacity)
        kept = int(retained.sum())
        full = capacity > 0 and bool((retained >= capacity).any())
        stats.append(RetentionStats(group, kept, total - kept, total, capacity, full))
    return stats


def extra_slots(manifest: Manifest, group: int) -> int:
    """Slots of a group's side buffer beyond M."""
    shapes = [
        state.shape
        for state in manifest.state
        if state.group == group and state.name == "retained_position"
    ]
    return manifest.retained_extra.get(str(shapes[0][1]), 0)
