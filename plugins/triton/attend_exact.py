"""Attention of new tokens to the cached tokens that are exact, to themselves, to retained ones."""

from __future__ import annotations

import triton
import triton.language as tl

from minicache.plugins.triton.slots import end_slot
from minicache.plugins.triton.softmax import LOG2_E, add_tile, capped
from minicache.plugins.triton.span import code_end, query_rows, row_lengths


@triton.jit
def attend_exact(
    query_ptr, key_ptr, value_ptr, exact_key_ptr, exact_value_ptr, retained_key_ptr,
    retained_value_ptr, retained_position_ptr, active_ptr, past_ptr, total_ptr, evicted_ptr,
    bias_ptr, maximum_ptr, sum_ptr, exact_ptr, new_tokens, first, count, heads, kv_heads,
    group_size, slot, slots, retained, sinks, window, ring_slots, local_window, splits,
    exact_splits, parts, bias_batch_stride, bias_capacity, scale, softcap,
    D: tl.constexpr, MODE: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    RETAINS: tl.constexpr, EVICTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid (cdiv(count * repeats, BLOCK_M), exact_splits, B * Hk).

    The cached tokens are cut into runs of whole tiles, one per split. The last split also takes the
    new and the retained tokens: the sums of a softmax do not mind the order.

    Tensors and numbers:
        query_ptr: T ``[B, S, H*D]``; key_ptr, value_ptr: T ``[B, S, Hk*D]``.
        exact_key_ptr, exact_value_ptr: E ``[B, G, Hk, slots, D]``.
        retained_key_ptr, retained_value_ptr: E ``[B, G, Hk, retained, D]``, with RETAINS.
        retained_position_ptr: int32 ``[B, retained]``, with RETAINS; active_ptr: int32, likewise,
            with RETAINS 2: not 0 where a token is read from the side buffer.
        past_ptr, total_ptr: int32 ``[B]``; evicted_ptr: int32 ``[B, 2]``, with EVICTS.
        bias_ptr: T ``[B or 1, H, S, bias_capacity]``, with HAS_BIAS; bias_batch_stride: elements
            between batch rows, 0 where they share it.
        maximum_ptr, sum_ptr: fp32 ``[B, count, H, parts]``, written from part ``splits`` on: as
            ``attend_codes`` writes them.
        exact_ptr: fp32 ``[B, count, H, exact_splits, D]``, written: sum of weight * value.
        new_tokens: S; first, count: the new tokens of this launch.
        heads, kv_heads: H, Hk; group_size, slot: G, and this layer's place in it.
        sinks, window, ring_slots: N, W and slots of the ring, with MODE 2.
        local_window: sliding window; 0 off.
        MODE: where positions lie. 0: each in its own slot; 1: p mod slots; 2: sinks, then a ring,
            beside codes.
        RETAINS: tokens read from the side buffer. 0: none; 1: those at [N, c0); 2: by flag.
        EVICTS: with MODE 0, and without bias and window: slots are not positions, but what is left
            of the tokens before the call comes first all the same (``slots``).
        BLOCK_M: rows (new token, query head); BLOCK_N: tokens of a tile.
    """
    split = tl.program_id(1)
    row = tl.program_id(2) // kv_heads
    kv_head = tl.program_id(2) % kv_heads
    past, new = row_lengths(past_ptr, total_ptr, row, new_tokens)
    repeats = heads // kv_heads
    first_row = tl.program_id(0) * BLOCK_M
    first_token = first + first_row // repeats
    if first_token >= new:
        return
    token, head, valid = query_rows(first_row, kv_head, first, count, new, repeats, BLOCK_M)
    out_row = (row * count + token).to(tl.int64) * heads + head
    PAD: tl.constexpr = triton.next_power_of_2(D)
    component = tl.arange(0, PAD)
    filled = component < D
    query_row = (row * new_tokens + first + token).to(tl.int64) * heads + head
    query = tl.load(
        query_ptr + query_row[:, None] * D + component[None, :],
        mask=valid[:, None] & filled[None, :],
        other=0.0,
    )
    cached_query = query.to(exact_key_ptr.dtype.element_ty)
    # Positions (bound, limit] are visible; -1 sees all.
    limit = past + first + token
    bound = tl.where(local_window > 0, limit - local_window, -1)
    oldest = tl.where(local_window > 0, past + first_token - local_window + 1, 0)
    bias_row_ptr = bias_ptr
    if HAS_BIAS:
        bias_row = (head * new_tokens + first + token).to(tl.int64) * bias_capacity
        bias_row_ptr = bias_ptr + (row * bias_batch_stride + bias_row)
    maximum = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    out = tl.zeros([BLOCK_M, PAD], tl.float32)

    # The cached tokens in order: the head of the list, then those from position ``resume`` on.
    if MODE == 2:
        leading = tl.minimum(sinks, past)
        resume = tl.maximum(code_end(past, sinks, window), sinks)
        cached = tl.maximum(leading + tl.maximum(past - resume, 0), 0)
    else:
        leading = 0
        stored = tl.minimum(end_slot(past, evicted_ptr, row, 1, EVICTS), slots)
        resume = tl.maximum(oldest, past - stored if MODE == 1 else 0)
        cached = tl.maximum((past if MODE == 1 else stored) - resume, 0)
    layer = ((row * group_size + slot) * kv_heads + kv_head).to(tl.int64)
    share = tl.cdiv(tl.cdiv(cached, BLOCK_N), exact_splits) * BLOCK_N
    begin = split * share
    for start in range(begin, tl.minimum(begin + share, cached), BLOCK_N):
        index = start + tl.arange(0, BLOCK_N)
        inside = index < cached
        position = tl.where(index < leading, index, index - leading + resume)
        at = position
        if MODE == 1:
            at = position % slots
        if MODE == 2:
            at = tl.where(position < sinks, position, sinks + (position - sinks) % ring_slots)
            inside = inside & (at < slots)
        where = (layer * slots + at)[:, None] * D + component[None, :]
        maximum, total, out = attend_tile(
            cached_query, exact_key_ptr + where, exact_value_ptr + where, inside, filled, position,
            limit, bound, valid, bias_row_ptr, bias_capacity, scale, softcap, maximum, total, out,
            HAS_BIAS, HAS_SOFTCAP,
        )  # fmt: skip
    if split == exact_splits - 1:
        newest = tl.minimum(new, first + (first_row + BLOCK_M - 1) // repeats + 1)
        oldest_new = tl.maximum(oldest - past, 0) // BLOCK_N * BLOCK_N
        for start in range(oldest_new, newest, BLOCK_N):
            index = start + tl.arange(0, BLOCK_N)
            new_row = (row * new_tokens + index).to(tl.int64) * kv_heads + kv_head
            where = new_row[:, None] * D + component[None, :]
            maximum, total, out = attend_tile(
                query, key_ptr + where, value_ptr + where, index < newest, filled, past + index,
                limit, bound, valid, bias_row_ptr, bias_capacity, scale, softcap, maximum, total,
                out, HAS_BIAS, HAS_SOFTCAP,
            )  # fmt: skip
        if RETAINS > 0:
            code_stop = code_end(past, sinks, window)
            for start in range(0, retained, BLOCK_N):
                index = start + tl.arange(0, BLOCK_N)
                inside = index < retained
                at = row * retained + index
                position = tl.load(retained_position_ptr + at, mask=inside, other=-1)
                inside = inside & (position >= sinks) & (position < code_stop)
                if RETAINS == 2:
                    inside = inside & (tl.load(active_ptr + at, mask=inside, other=0) != 0)
                where = (layer * retained + index)[:, None] * D + component[None, :]
                maximum, total, out = attend_tile(
                    cached_query, retained_key_ptr + where, retained_value_ptr + where, inside,
                    filled, position, limit, bound, valid, bias_row_ptr, bias_capacity, scale,
                    softcap, maximum, total, out, HAS_BIAS, HAS_SOFTCAP,
                )  # fmt: skip
    part = splits + split
    tl.store(maximum_ptr + out_row * parts + part, maximum, mask=valid)
    tl.store(sum_ptr + out_row * parts + part, total, mask=valid)
    written = exact_ptr + (out_row * exact_splits + split)[:, None] * D + component[None, :]
    tl.store(written, out, mask=valid[:, None] & filled[None, :])


@triton.jit
def attend_tile(
    query, key_ptr, value_ptr, inside, filled, position, limit, bound, valid, bias_row_ptr,
    bias_capacity, scale, softcap, maximum, total, out, HAS_BIAS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
):  # fmt: skip
    """Takes the tokens of a tile into the running softmax; see ``attend_exact`` for the rest.

    ``key_ptr`` and ``value_ptr`` are pointers ``[N, PAD]``, ``inside`` ``[N]`` says which tokens
    there are, ``filled`` ``[PAD]`` which components, ``position`` ``[N]`` where they are. Keys and
    values are of the query's type; weights are rounded to it.
    """
    loaded = inside[:, None] & filled[None, :]
    key = tl.load(key_ptr, mask=loaded, other=0.0)
    score = tl.dot(query, tl.trans(key))
    if HAS_SOFTCAP or HAS_BIAS:
        score = score * scale
        if HAS_SOFTCAP:
            score = capped(score, softcap)
        if HAS_BIAS:
            known = valid[:, None] & (inside & (position < bias_capacity))[None, :]
            known = known & (position[None, :] <= limit[:, None])
            bias = tl.load(bias_row_ptr[:, None] + position[None, :], mask=known, other=0.0)
            score += bias.to(tl.float32)
        score = score * LOG2_E
    else:
        score = score * (scale * LOG2_E)
    visible = (position[None, :] <= limit[:, None]) & (position[None, :] > bound[:, None])
    score = tl.where(visible & inside[None, :], score, -float("inf"))
    weight, rescale, maximum, total = add_tile(score, maximum, total)
    value = tl.load(value_ptr, mask=loaded, other=0.0)
    out = tl.dot(weight.to(value.dtype), value, out * rescale[:, None])
    return maximum, total, out
