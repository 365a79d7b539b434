"""Retention: which tokens keep their full vectors, because their layers disagree (paper 3.3).

The paper writes its rule as an inequality on the angular distance that, read literally, keeps the
most *similar* tokens; here it is read with the cosine, and the least similar tokens are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from minicache.plugins.reference.primitives import Array, similarity

FREE = -1


def group_similarity(keys: Array, values: Array, scope: str = "mean") -> Array:
    """Similarity of each token: how well the neighbouring layers of its group agree.

    Args:
        keys: ``[G, heads, tokens, D]``, heads matched to code heads.
        values: likewise.
        scope: ``mean`` over K and V, heads and neighbouring pairs, or ``any-head``, the minimum.

    Returns:
        ``[tokens]`` float32 (the type of ``retained_similarity``); 1 where G is 1.

    Raises:
        ValueError: an unknown scope.
    """
    if scope not in ("mean", "any-head"):
        raise ValueError(f"retention_scope is {scope!r}, not 'mean' or 'any-head'")
    if keys.shape[0] == 1:
        return np.ones(keys.shape[2], np.float32)
    cosines = np.stack([similarity(x[:-1], x[1:]) for x in (keys, values)])
    reduce = np.mean if scope == "mean" else np.min
    return np.asarray(reduce(cosines, axis=(0, 1, 2))).astype(np.float32)


def retention_mask(
    similarities: npt.ArrayLike,
    policy: str,
    *,
    threshold: float = 0.9,
    gamma: float = 0.05,
    capacity: int | None = None,
    similarity_range: tuple[float, float] | None = None,
) -> Array:
    """Says which tokens of one sequence are retained.

    Args:
        similarities: ``[tokens]`` in order of position.
        policy: ``none``; ``threshold``: those below ``threshold``; ``minmax``: those below
            c_min + (c_max - c_min) * ``gamma``; ``budget``: the ``capacity`` least similar.
        threshold: of ``threshold``.
        gamma: of ``minmax``.
        capacity: at most so many tokens, the first ones in order; None: no bound.
        similarity_range: c_min, c_max of ``minmax``; None: those of ``similarities``.

    Returns:
        ``[tokens]`` bool.

    Raises:
        ValueError: an unknown policy, or ``budget`` without a capacity.
    """
    cosines = np.asarray(similarities)
    order = np.arange(cosines.size)
    if policy == "none" or cosines.size == 0:
        return np.zeros(cosines.shape, bool)
    if policy == "threshold":
        chosen = order[cosines < threshold]
    elif policy == "minmax":
        low, high = similarity_range or (float(cosines.min()), float(cosines.max()))
        chosen = order[cosines < low + (high - low) * gamma]
    elif policy == "budget":
        if capacity is None:
            raise ValueError("the retention policy 'budget' needs a capacity")
        chosen = np.lexsort((order, cosines))
    else:
        raise ValueError(
            f"the retention policy {policy!r} is unknown; use none, threshold, minmax, budget"
        )
    mask = np.zeros(cosines.shape, bool)
    mask[chosen[:capacity]] = True
    return mask


@dataclass(frozen=True)
class RetentionUpdate:
    """What one call changes in the side buffer of one batch row.

    Attributes:
        position: ``[M]`` int32, the new ``retained_position``.
        written: the slot of each retained token of this call, by position.
        evicted: positions that were retained before and are no longer.
    """

    position: Array
    written: dict[int, int]
    evicted: list[int]


def update_retained(
    position: Array,
    retained_similarity: Array,
    cached: tuple[int, int],
    encoded: tuple[int, int],
    similarities: Array,
    policy: str,
    *,
    threshold: float,
    gamma: float,
    similarity_range: tuple[float, float],
) -> RetentionUpdate:
    """Computes the retained set of one batch row from L and E of docs/operator.md.

    Args:
        position: ``[M]`` int32, ``retained_position`` before the call.
        retained_similarity: ``[M]`` fp32, valid where a position is held.
        cached: positions [N, c0) whose retained tokens (L) count; entries elsewhere are dropped.
        encoded: positions [first, c1) that are encoded by this call (E).
        similarities: ``[c1 - first]`` fp32, of E.
        policy: ``threshold``, ``minmax`` or ``budget``.
        threshold: of ``threshold``.
        gamma: of ``minmax``.
        similarity_range: c_min, c_max with E taken in.
    """
    capacity = position.size
    old_slot = {int(p): slot for slot, p in enumerate(position) if p >= 0}
    kept_before = [p for p in sorted(old_slot) if cached[0] <= p < cached[1]]
    new = list(range(*encoded))
    if policy == "budget":
        candidates = kept_before + new
        before = [retained_similarity[old_slot[p]] for p in kept_before]
        mask = retention_mask([*before, *similarities], policy, capacity=capacity)
        kept = [p for p, keep in zip(candidates, mask, strict=True) if keep]
    else:
        mask = retention_mask(
            similarities,
            policy,
            threshold=threshold,
            gamma=gamma,
            capacity=max(0, capacity - len(kept_before)),
            similarity_range=similarity_range,
        )
        kept = kept_before + [p for p, keep in zip(new, mask, strict=True) if keep]
    after = np.full_like(position, FREE)
    for p in kept:
        if p in old_slot:
            after[old_slot[p]] = p
    free = iter(np.flatnonzero(after == FREE))
    for p in kept:
        if p not in old_slot:
            after[next(free)] = p
    slot_of = {int(p): slot for slot, p in enumerate(after) if p >= 0}
    written = {p: slot_of[p] for p in kept if encoded[0] <= p < encoded[1]}
    return RetentionUpdate(after, written, [p for p in kept_before if p not in slot_of])
