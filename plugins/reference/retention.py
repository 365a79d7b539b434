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


def update_range(
    ranges: Array, sinks: int, encoded: tuple[int, int], similarities: Array
) -> tuple[float, float]:
    """Takes the tokens of a call into the running range of similarities.

    Args:
        ranges: ``[X + 1, 2]`` fp32, ``similarity_range`` of one row; changed in place. Entry
            (c - N) mod (X + 1) holds minimum and maximum over the positions [N, c).
        sinks: N.
        encoded: positions [first, c1) that are encoded by this call (E).
        similarities: ``[c1 - first]`` fp32, of E.

    Returns:
        Minimum and maximum over [N, c1).
    """
    first, end = encoded
    slots = len(ranges)
    before = ranges[(first - sinks) % slots] if first > sinks else (np.inf, -np.inf)
    low = np.minimum.accumulate([before[0], *similarities])
    high = np.maximum.accumulate([before[1], *similarities])
    for c in range(max(first, end - slots) + 1, end + 1):
        ranges[(c - sinks) % slots] = low[c - first], high[c - first]
    return float(low[-1]), float(high[-1])


def active_slots(
    position: Array, retained_similarity: Array, coded: tuple[int, int], policy: str, capacity: int
) -> Array:
    """Slots of the side buffer that are read where the codes end at c: A(c) of docs/operator.md.

    Args:
        position: ``[P]`` int32, ``retained_position``.
        retained_similarity: ``[P]`` fp32, valid where a position is held.
        coded: positions [N, c).
        policy: ``threshold``, ``minmax`` or ``budget``.
        capacity: M.

    Returns:
        At most M slots, by position.
    """
    held = np.flatnonzero((position >= coded[0]) & (position < coded[1]))
    if policy == "budget":
        held = held[np.lexsort((position[held], retained_similarity[held]))[:capacity]]
    return np.asarray(held[np.argsort(position[held])])


@dataclass(frozen=True)
class RetentionUpdate:
    """What one call changes in the side buffer of one batch row.

    Attributes:
        position: ``[P]`` int32, the new ``retained_position``.
        similarity: ``[P]`` fp32, the new ``retained_similarity``.
        written: the slot of each token of this call that is stored, by position.
        active: positions that are read from the buffer after the call, ascending.
    """

    position: Array
    similarity: Array
    written: dict[int, int]
    active: Array


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
    extra: int = 0,
) -> RetentionUpdate:
    """Computes the side buffer of one batch row from L and E of docs/operator.md.

    Args:
        position: ``[P]`` int32, ``retained_position`` before the call.
        retained_similarity: ``[P]`` fp32, valid where a position is held.
        cached: positions [N, c0) whose stored tokens (L) count; entries elsewhere are dropped.
        encoded: positions [first, c1) that are encoded by this call (E).
        similarities: ``[c1 - first]`` fp32, of E.
        policy: ``threshold``, ``minmax`` or ``budget``.
        threshold: of ``threshold``.
        gamma: of ``minmax``.
        similarity_range: c_min, c_max with E taken in.
        extra: slots beyond M (``schemas.retained_extra``).
    """
    slots = position.size
    old_slot = {int(p): slot for slot, p in enumerate(position) if p >= 0}
    kept_before = [p for p in sorted(old_slot) if cached[0] <= p < cached[1]]
    new = list(range(*encoded))
    if policy == "budget":
        candidates = kept_before + new
        before = [retained_similarity[old_slot[p]] for p in kept_before]
        mask = retention_mask([*before, *similarities], policy, capacity=slots)
        kept = [p for p, keep in zip(candidates, mask, strict=True) if keep]
    else:
        mask = retention_mask(
            similarities,
            policy,
            threshold=threshold,
            gamma=gamma,
            capacity=max(0, slots - len(kept_before)),
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
    similarity = retained_similarity.copy()
    for p, slot in written.items():
        similarity[slot] = similarities[p - encoded[0]]
    coded = cached[0], encoded[1]
    active = active_slots(after, similarity, coded, policy, max(0, slots - extra))
    return RetentionUpdate(after, similarity, written, after[active])
