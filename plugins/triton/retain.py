"""The side buffer after a call, as a function of its tokens before (L) and of those encoded (E)."""

from __future__ import annotations

import triton
import triton.language as tl

from minicache.plugins.triton.encoded import encoded_span
from minicache.plugins.triton.least import EVERY, least_similar, stored_key, token_key

FREE = tl.constexpr(-1)
WANTS = tl.constexpr(-2)  # of a token of E that stays and has no slot yet
THRESHOLD = tl.constexpr(0)
MINMAX = tl.constexpr(1)
BUDGET = tl.constexpr(2)


@triton.jit
def retain(
    position_ptr, similarity_ptr, range_ptr, cosine_ptr, past_ptr, total_ptr, token_similarity_ptr,
    slot_ptr, free_ptr, change_ptr, batch, new_tokens, group_size, kv_heads, retained, slack, sinks,
    window, threshold, gamma,
    POLICY: tl.constexpr, ANY_HEAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per batch row; its threads meet at barriers where they read what others wrote.

    Tensors:
        position_ptr: i32[B, P], changed in place, as are the next two.
        similarity_ptr: fp32[B, P].
        range_ptr: fp32[B, X + 1, 2].
        cosine_ptr: fp64[2 (K, V), 2 (sum, minimum), B, S, Hk], as ``encode`` leaves it.
        past_ptr: i32[B].
        total_ptr: i32[B].
        token_similarity_ptr: fp32[B, S], written: of the tokens of E.
        slot_ptr: i32[B, S], written: the slot of each token of E that is stored, else -1.
        free_ptr: i32[B, P], scratch.
        change_ptr: i32[B, P + S], written: 2 * position + (1 where the code is to be skipped) for
            ``mark``, of what the slots held and of the tokens of E; -1: nothing.

    Constants:
        POLICY: 0 threshold, 1 minmax, 2 budget.
        ANY_HEAD: the scope of similarity: the minimum, not the mean.
    """
    row = tl.program_id(0)
    past, total, c0, first, end = encoded_span(past_ptr, total_ptr, row, sinks, window)
    if total <= past:
        return
    count = tl.minimum(end - first, new_tokens)
    position_ptr += row.to(tl.int64) * retained
    similarity_ptr += row.to(tl.int64) * retained
    free_ptr += row.to(tl.int64) * retained
    token_similarity_ptr += row.to(tl.int64) * new_tokens
    slot_ptr += row.to(tl.int64) * new_tokens
    change_ptr += row.to(tl.int64) * (retained + new_tokens)
    for start in range(0, new_tokens, BLOCK):
        index = start + tl.arange(0, BLOCK)
        similarity = token_similarity(
            cosine_ptr, row, index, count, batch, new_tokens, group_size, kv_heads, ANY_HEAD
        )
        tl.store(token_similarity_ptr + index, similarity, mask=index < count)
        tl.store(slot_ptr + index, FREE, mask=index < new_tokens)
    tl.debug_barrier()
    low, high = update_range(
        range_ptr + row.to(tl.int64) * (slack + 1) * 2, token_similarity_ptr, first, count, slack,
        sinks, BLOCK,
    )  # fmt: skip

    # What holds tokens of E: the same call was run before, or one that was taken back.
    kept = row * 0
    for start in range(0, retained, BLOCK):
        slot = start + tl.arange(0, BLOCK)
        position = tl.load(position_ptr + slot, mask=slot < retained, other=-1)
        kept += tl.sum(((position >= sinks) & (position < c0)).to(tl.int32))
        again = (position >= first) & (position < first + count)
        tl.store(slot_ptr + position - first, slot, mask=again)
    bound = (row * 0).to(tl.int64) + EVERY
    active_bound = bound
    if POLICY == BUDGET:
        bound = least_similar(
            position_ptr, similarity_ptr, retained, sinks, c0, token_similarity_ptr, first, count,
            retained, BLOCK,
        )  # fmt: skip
        active_bound = least_similar(
            position_ptr, similarity_ptr, retained, sinks, c0, token_similarity_ptr, first, count,
            tl.maximum(0, retained - slack), BLOCK,
        )  # fmt: skip
    limit = threshold
    if POLICY == MINMAX:
        span = high.to(tl.float64) - low.to(tl.float64)
        limit = (low.to(tl.float64) + span * tl.cast(gamma, tl.float64)).to(tl.float32)
    room = tl.maximum(0, retained - kept)
    tl.debug_barrier()

    # The tokens of E that stay: with the slot that they had, or without one.
    taken = row * 0
    for start in range(0, count, BLOCK):
        index = start + tl.arange(0, BLOCK)
        key = token_key(token_similarity_ptr, index, first, count)
        if POLICY == BUDGET:
            stays = key < bound
        else:
            similarity = tl.load(token_similarity_ptr + index, mask=index < count, other=0.0)
            stays = (index < count) & (similarity < limit)
            rank = taken + tl.cumsum(stays.to(tl.int32), 0)
            taken += tl.sum(stays.to(tl.int32))
            stays = stays & (rank <= room)
        slot = tl.load(slot_ptr + index, mask=index < count, other=FREE)
        slot = tl.where(stays, tl.where(slot >= 0, slot, WANTS), FREE)
        tl.store(slot_ptr + index, slot, mask=index < count)
    tl.debug_barrier()

    # The other slots are freed, and listed.
    free = row * 0
    for start in range(0, retained, BLOCK):
        slot = start + tl.arange(0, BLOCK)
        position = tl.load(position_ptr + slot, mask=slot < retained, other=-1)
        key = stored_key(position_ptr, similarity_ptr, slot, retained, sinks, c0)
        again = (position >= first) & (position < first + count)
        mine = tl.load(slot_ptr + position - first, mask=again, other=FREE)
        stays = (key < bound) | (again & (mine == slot))
        change = tl.where(key < EVERY, 2 * position + (key < active_bound).to(tl.int32), -1)
        tl.store(change_ptr + slot, change, mask=slot < retained)
        tl.store(position_ptr + slot, tl.where(stays, position, FREE), mask=slot < retained)
        frees = (slot < retained) & (stays == 0)
        rank = free + tl.cumsum(frees.to(tl.int32), 0) - 1
        tl.store(free_ptr + rank, slot, mask=frees)
        free += tl.sum(frees.to(tl.int32))
    tl.debug_barrier()

    # New tokens take free slots in ascending order, by position.
    taken = row * 0
    for start in range(0, new_tokens, BLOCK):
        index = start + tl.arange(0, BLOCK)
        inside = index < count
        slot = tl.load(slot_ptr + index, mask=inside, other=FREE)
        wants = slot == WANTS
        rank = taken + tl.cumsum(wants.to(tl.int32), 0) - 1
        taken += tl.sum(wants.to(tl.int32))
        there = wants & (rank < free)
        slot = tl.where(wants, tl.load(free_ptr + rank, mask=there, other=FREE), slot)
        tl.store(slot_ptr + index, slot, mask=inside)
        similarity = tl.load(token_similarity_ptr + index, mask=inside, other=0.0)
        tl.store(position_ptr + slot, first + index, mask=slot >= 0)
        tl.store(similarity_ptr + slot, similarity, mask=slot >= 0)
        key = token_key(token_similarity_ptr, index, first, count)
        marks = (slot >= 0) & (key < active_bound)
        change = tl.where(marks, 2 * (first + index) + 1, -1)
        tl.store(change_ptr + retained + index, change, mask=index < new_tokens)


@triton.jit
def token_similarity(
    cosine_ptr, row, index, count, batch, new_tokens, group_size, kv_heads, ANY_HEAD: tl.constexpr
):
    """Similarities [tokens] of tokens of E, fp32; 1 in a group of one layer."""
    inside = index < count
    part = tl.cast(batch, tl.int64) * new_tokens * kv_heads
    token_ptr = cosine_ptr + (row.to(tl.int64) * new_tokens + index) * kv_heads
    similarity = index.to(tl.float64) * 0.0
    if ANY_HEAD:
        similarity += float("inf")
    for head in range(kv_heads):
        for kind in range(2):
            at = token_ptr + (2 * kind + ANY_HEAD) * part + head
            cosine = tl.load(at, mask=inside, other=0.0)
            if ANY_HEAD:
                lower = (cosine < similarity) | (cosine != cosine)
                similarity = tl.where(lower, cosine, similarity)
            else:
                similarity += cosine
    pairs = 2 * (group_size - 1) * kv_heads
    if not ANY_HEAD:
        similarity = similarity / tl.maximum(pairs, 1).to(tl.float64)
    return tl.where(pairs > 0, similarity, 1.0).to(tl.float32)


@triton.jit
def update_range(
    range_ptr, token_similarity_ptr, first, count, slack, sinks, BLOCK: tl.constexpr
):  # fmt: skip
    """Takes E into ``similarity_range`` of a row; NaN stays in it.

    Entry (c - N) mod (X + 1) is of the positions [N, c); of the last X + 1 c, all are written.

    Returns:
        Minimum and maximum over [N, c1).
    """
    entries = slack + 1
    low = tl.load(range_ptr + (first - sinks) % entries * 2)
    high = tl.load(range_ptr + (first - sinks) % entries * 2 + 1)
    low = tl.where(first > sinks, low, float("inf"))
    high = tl.where(first > sinks, high, float("-inf"))
    head = tl.maximum(count - entries, 0)  # tokens without an entry of their own
    for start in range(0, head, BLOCK):
        index = start + tl.arange(0, BLOCK)
        similarity = tl.load(token_similarity_ptr + index, mask=index < head, other=0.0)
        lost = tl.sum(((index < head) & (similarity != similarity)).to(tl.int32)) > 0
        known = (index < head) & (similarity == similarity)
        lowest = tl.min(tl.where(known, similarity, float("inf")), 0)
        highest = tl.max(tl.where(known, similarity, float("-inf")), 0)
        least = tl.where(lost, float("nan"), lowest)
        low, high = widened(low, high, least, tl.where(lost, float("nan"), highest))
    tl.debug_barrier()  # the entry of c0 is read before it may be written
    for index in range(head, count):
        similarity = tl.load(token_similarity_ptr + index)
        low, high = widened(low, high, similarity, similarity)
        at = range_ptr + (first + index + 1 - sinks) % entries * 2
        tl.store(at, low)
        tl.store(at + 1, high)
    return low, high


@triton.jit
def widened(low, high, least, greatest):
    """The range with more similarities taken in; NaN comes through."""
    low = tl.where((least < low) | (least != least), least, low)
    high = tl.where((greatest > high) | (greatest != greatest), greatest, high)
    return low, high
