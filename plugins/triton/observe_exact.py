"""How much the observed queries of a call attend to tokens that have no code, or not only one."""

from __future__ import annotations

import triton
import triton.language as tl

from minicache.plugins.triton.encoded import ring_slot
from minicache.plugins.triton.slots import end_slot, slot_of
from minicache.plugins.triton.softmax import LOG2_E, capped
from minicache.plugins.triton.span import code_end, observed_tokens, row_lengths


@triton.jit
def observe_exact(
    query_ptr, key_ptr, exact_key_ptr, retained_key_ptr, retained_position_ptr, active_ptr,
    past_ptr, total_ptr, evicted_ptr, log_sum_ptr, mass_ptr, new_tokens, first, count, heads,
    kv_heads, group_size, slot, slots, retained, capacity, segments, segment_length, sinks, window,
    ring_slots, observes, scale, softcap, D: tl.constexpr, MODE: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr, RETAINS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of BLOCK_N of the slots, of the new tokens [0, first + count), of retained, B).

    A program adds up what the tokens of one tile get from all queries of all heads, and is the only
    one that writes their entries. Arguments are those of ``attend_exact`` (MODE 1 does not occur),
    and these:
        evicted_ptr: int32 ``[B, segments + 1]``: tokens that are evicted before each segment.
        log_sum_ptr: fp32 ``[B, count, H]``, of ``observe_sum``.
        mass_ptr: fp32 ``[B, capacity]``, added to; set for the new tokens of this launch.
        segment_length: L.
        observes: how many of the last valid tokens are observed; -1: all.
    """
    tile = tl.program_id(0)
    row = tl.program_id(1)
    past, new = row_lengths(past_ptr, total_ptr, row, new_tokens)
    begin, end = observed_tokens(first, count, new, observes)
    mass_row_ptr = mass_ptr + row.to(tl.int64) * capacity
    layer = ((row * group_size + slot) * kv_heads).to(tl.int64)
    held_tiles = tl.cdiv(slots, BLOCK_N)
    new_tiles = tl.cdiv(first + count, BLOCK_N)
    PAD: tl.constexpr = triton.next_power_of_2(D)
    component = tl.arange(0, PAD)
    if (begin >= end) & ((tile < held_tiles) | (tile >= held_tiles + new_tiles)):
        return  # but the masses of new tokens begin
    if tile < held_tiles:
        index = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        if MODE == 2:
            leading = tl.minimum(sinks, past)
            resume = tl.maximum(code_end(past, sinks, window), sinks)
            held = leading + tl.maximum(past - resume, 0)
            position = tl.where(index < leading, index, index - leading + resume)
            at = ring_slot(position, sinks, ring_slots)
            entry = slot_of(position, evicted_ptr, row, segments, segment_length, sinks, 1)
        else:
            held = end_slot(past, evicted_ptr, row, segments, 1)
            at = index
            entry = index
        inside = (index < held) & (at < slots)
        if tile * BLOCK_N < held:
            where = (layer * slots + at)[:, None] * D + component[None, :]
            gained = token_mass(
                query_ptr, exact_key_ptr + where, slots * D, index - index, inside, log_sum_ptr,
                row, new_tokens, first, count, begin, end, heads, kv_heads, scale, softcap, D,
                HAS_SOFTCAP, BLOCK_M, BLOCK_N,
            )  # fmt: skip
            add_mass(mass_row_ptr, entry, gained, inside, capacity)
    elif tile < held_tiles + new_tiles:
        start = (tile - held_tiles) * BLOCK_N
        index = start + tl.arange(0, BLOCK_N)
        inside = index < tl.minimum(new, first + count)
        new_row = (row * new_tokens + index).to(tl.int64) * kv_heads
        where = new_row[:, None] * D + component[None, :]
        gained = token_mass(
            query_ptr, key_ptr + where, D, index, inside, log_sum_ptr, row, new_tokens, first,
            count, tl.maximum(begin, start), end, heads, kv_heads, scale, softcap, D, HAS_SOFTCAP,
            BLOCK_M, BLOCK_N,
        )  # fmt: skip
        entry = slot_of(past + index, evicted_ptr, row, segments, segment_length, sinks, 1)
        # Tokens of earlier launches have begun; the others start from nothing.
        inside = inside & (entry >= 0) & (entry < capacity)
        begun = inside & (index < first)
        mass = tl.load(mass_row_ptr + entry, mask=begun, other=0.0)
        tl.store(mass_row_ptr + entry, mass + gained, mask=inside)
    elif RETAINS > 0:
        index = (tile - held_tiles - new_tiles) * BLOCK_N + tl.arange(0, BLOCK_N)
        inside = index < retained
        at = row * retained + index
        position = tl.load(retained_position_ptr + at, mask=inside, other=-1)
        inside = inside & (position >= sinks) & (position < code_end(past, sinks, window))
        if RETAINS == 2:
            inside = inside & (tl.load(active_ptr + at, mask=inside, other=0) != 0)
        where = (layer * retained + index)[:, None] * D + component[None, :]
        gained = token_mass(
            query_ptr, retained_key_ptr + where, retained * D, index - index, inside,
            log_sum_ptr, row, new_tokens, first, count, begin, end, heads, kv_heads, scale,
            softcap, D, HAS_SOFTCAP, BLOCK_M, BLOCK_N,
        )  # fmt: skip
        entry = slot_of(position, evicted_ptr, row, segments, segment_length, sinks, 1)
        add_mass(mass_row_ptr, entry, gained, inside, capacity)


@triton.jit
def token_mass(
    query_ptr, key_ptr, head_stride, index, inside, log_sum_ptr, row, new_tokens, first, count,
    begin, end, heads, kv_heads, scale, softcap, D: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Mean over heads, summed over the new tokens [begin, end), of weights: fp32 ``[BLOCK_N]``.

    ``key_ptr`` are pointers ``[BLOCK_N, PAD]`` to the keys of the first kv head, ``head_stride``
    elements before those of the next; ``inside`` says which tokens there are, and ``index`` which
    new token is the first to see each; see ``observe_exact`` for the rest.
    """
    repeats = heads // kv_heads
    PAD: tl.constexpr = triton.next_power_of_2(D)
    component = tl.arange(0, PAD)
    filled = component < D
    gained = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for kv_head in range(kv_heads):
        head_ptr = key_ptr + tl.cast(kv_head, tl.int64) * head_stride
        key = tl.trans(tl.load(head_ptr, mask=inside[:, None] & filled[None, :], other=0.0))
        for start in range(0, (end - begin) * repeats, BLOCK_M):
            query_row = start + tl.arange(0, BLOCK_M)
            token = begin + query_row // repeats
            valid = token < end
            head = kv_head * repeats + query_row % repeats
            query_at = (row * new_tokens + token).to(tl.int64) * heads + head
            query = tl.load(
                query_ptr + query_at[:, None] * D + component[None, :],
                mask=valid[:, None] & filled[None, :],
                other=0.0,
            )
            score = tl.dot(query.to(key.dtype), key)
            if HAS_SOFTCAP:
                score = capped(score * scale, softcap) * LOG2_E
            else:
                score = score * (scale * LOG2_E)
            lead = (row * count + token - first).to(tl.int64) * heads + head
            log_sum = tl.load(log_sum_ptr + lead, mask=valid, other=float("inf"))
            weight = tl.exp2(score - log_sum[:, None])
            visible = inside[None, :] & (index[None, :] <= token[:, None])
            gained += tl.where(valid[:, None] & visible, weight, 0.0)
    return tl.sum(gained, 0) / heads


@triton.jit
def add_mass(mass_row_ptr, entry, gained, inside, capacity):
    """Adds to entries ``[N]`` of a row's mass, where there are such tokens."""
    inside = inside & (entry >= 0) & (entry < capacity)
    mass = tl.load(mass_row_ptr + entry, mask=inside, other=0.0)
    tl.store(mass_row_ptr + entry, mass + gained, mask=inside)
