"""``retain`` and ``active`` by themselves against the reference, on many rows of random state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from minicache.plugins.reference.retention import (
    active_slots,
    group_similarity,
    update_range,
    update_retained,
)
from minicache.plugins.reference.state import Span
from tests.plugins.triton.interpreter import Array, Buffer, launch, scratch

# isort: split
from minicache.plugins.triton.active import active
from minicache.plugins.triton.least import EVERY, POSITION_BITS
from minicache.plugins.triton.retain import retain

POLICIES = ("threshold", "minmax", "budget")
ROWS, TOKENS, CAPACITY = 6, 40, 128
THRESHOLD, GAMMA = 0.25, 0.3


@dataclass
class Rows:
    """Batch rows before a call: side buffer, range, and the cosines of the call's tokens."""

    position: Array
    similarity: Array
    ranges: Array
    cosines: Array  # fp64 [2, 2, B, S, heads]
    past: Array
    total: Array


def coarse(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Similarities of few values, so that many are equal; some are NaN or zeros of either sign."""
    values = rng.integers(-8, 9, shape) / 8
    values[rng.random(shape) < 0.05] = np.nan
    values[rng.random(shape) < 0.05] = -0.0
    return values


def make_rows(rng: np.random.Generator, slots: int, slack: int, sinks: int, window: int) -> Rows:
    """Rows of any length: first calls, single tokens, prefill, none; the last one runs again."""
    past = np.array([0, 50, 61, 44, 7, 70], np.int32)
    new = np.array([TOKENS, 1, 0, 30, 3, 9], np.int32)
    position = np.full((ROWS, slots), -1, np.int32)
    for row in range(ROWS):
        # Some rows were further on before: what they hold is in the way of earlier tokens.
        oldest = max(sinks, past[row] - window - 3) if row > 2 else sinks
        held = rng.permutation(np.arange(oldest, past[row] + 12))[: rng.integers(0, slots + 1)]
        at = rng.permutation(slots)[: held.size]
        position[row, at] = held
    similarity = coarse(rng, (ROWS, slots)).astype(np.float32)
    ranges = np.sort(rng.uniform(-1, 1, (ROWS, slack + 1, 2)), axis=-1).astype(np.float32)
    one = coarse(rng, (ROWS, TOKENS, 1))
    cosines = np.stack([np.stack([one, one])] * 2)  # keys and values agree, as do sum and minimum
    return Rows(position, similarity, ranges, cosines, past, past + new)


def compare(policy: str, rows: Rows, slots: int, slack: int, sinks: int, window: int,
            any_head: int, block: int) -> None:  # fmt: skip
    """Runs the kernel on all rows and the reference row by row."""
    buffers = {name: Buffer(getattr(rows, name), written=True)
               for name in ("position", "similarity", "ranges")}  # fmt: skip
    made = [scratch((ROWS, TOKENS), np.float32), scratch((ROWS, TOKENS), np.int32)]
    made += [scratch((ROWS, slots), np.int32), scratch((ROWS, slots + TOKENS), np.int32)]
    arguments = [*buffers.values(), Buffer(rows.cosines), Buffer(rows.past), Buffer(rows.total)]
    numbers = [ROWS, TOKENS, 2, 1, slots, slack, sinks, window, THRESHOLD, GAMMA]
    launch(retain, (ROWS,), [*arguments, *made, *numbers],
           POLICY=POLICIES.index(policy), ANY_HEAD=any_head, BLOCK=block)  # fmt: skip
    extra = slack if policy == "budget" else 0
    for row in range(ROWS):
        before = rows.position[row], rows.similarity[row]
        actual = [buffer.array[row] for buffer in buffers.values()]
        if rows.past[row] == rows.total[row]:
            for array, old in zip(actual, (*before, rows.ranges[row]), strict=True):
                np.testing.assert_array_equal(array, old)
            continue
        span = Span(int(rows.past[row]), int(rows.total[row]), sinks, window)
        first, end = span.encoded
        similarities = rows.cosines[0, 1, row, : end - first, 0].astype(np.float32)
        ranges = rows.ranges[row].copy()
        with np.errstate(invalid="ignore"):
            limits = update_range(ranges, sinks, (first, end), similarities)
        update = update_retained(
            *before, (sinks, span.c0), (first, end), similarities, policy,
            threshold=THRESHOLD, gamma=float(np.float32(GAMMA)), similarity_range=limits,
            extra=extra,
        )  # fmt: skip
        wanted = update.position, update.similarity, ranges
        for array, its, name in zip(actual, wanted, buffers, strict=True):
            np.testing.assert_array_equal(array, its, f"{name} of row {row}")
        slot, change = made[1].array[row], made[3].array[row]
        expected = np.full(TOKENS, -1)
        for p, at in update.written.items():
            expected[p - first] = at
        np.testing.assert_array_equal(slot, expected, f"slots of row {row}")
        marks = {int(c) >> 1: bool(c & 1) for c in change if c >= 0}
        skipped = sorted(p for p, mark in marks.items() if mark)
        np.testing.assert_array_equal(skipped, update.active, f"marks of row {row}")
        stored = before[0][(before[0] >= sinks) & (before[0] < span.c0)]
        assert set(marks) >= set(stored.tolist()), f"row {row} leaves marks as they were"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("slots", "slack", "sinks", "window", "block"),
    [(21, 6, 4, 5, 16), (7, 7, 0, 3, 8), (70, 0, 3, 0, 32), (1, 1, 2, 8, 16), (0, 3, 4, 5, 16)],
)
def test_the_side_buffer_is_the_references(
    policy: str, slots: int, slack: int, sinks: int, window: int, block: int
) -> None:
    """Slots, positions, similarities, ranges and marks are the reference's, exactly."""
    rng = np.random.default_rng(slots)
    rows = make_rows(rng, slots, slack, sinks, window)
    compare(policy, rows, slots, slack, sinks, window, slots % 2, block)


@pytest.mark.parametrize("policy", POLICIES)
def test_earlier_tokens_come_first(policy: str) -> None:
    """A token of a call that was taken back is in the buffer, but earlier ones fill its slots."""
    rows = make_rows(np.random.default_rng(0), 3, 6, 4, 5)
    rows.position[:] = -1
    rows.position[5] = (67, 20, 73)  # the call encodes 65..73, and there is room for two
    rows.similarity[5] = 0
    rows.cosines[...] = 0
    rows.ranges[..., 1] = 1
    compare(policy, rows, 3, 6, 4, 5, 0, 16)


def test_similarities_without_ties() -> None:
    """Random similarities differ in their low bits only: all digits of a key are searched."""
    rng = np.random.default_rng(3)
    rows = make_rows(rng, 40, 9, 4, 5)
    close = 0.5 + rng.integers(0, 40, rows.cosines.shape[2:]) * 2.0**-24
    rows.cosines[...] = close
    rows.similarity[...] = 0.5 + rng.integers(0, 40, rows.similarity.shape) * 2.0**-24
    compare("budget", rows, 40, 9, 4, 5, 1, 64)


@pytest.mark.parametrize("any_head", [0, 1])
def test_similarity_of_heads_and_layers(any_head: int) -> None:
    """The mean over K and V, heads and pairs, or the minimum; NaN stays; 1 in a group of one."""
    rng = np.random.default_rng(1)
    group, heads, tokens, batch = 3, 2, 20, 1
    vectors = rng.standard_normal((2, group, heads, tokens, 8))
    unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    cosine = np.sum(unit[:, :-1] * unit[:, 1:], axis=-1).transpose(1, 0, 3, 2)  # pair, kind, ...
    cosine[:, :, 7] = np.nan
    cosines = np.stack([cosine.sum(0), cosine.min(0)], axis=1)[:, :, None]
    expected = group_similarity(*vectors, scope="any-head" if any_head else "mean")
    expected[7] = np.nan
    for layers in (group, 1):
        made = [scratch((batch, tokens), np.float32), scratch((batch, tokens), np.int32)]
        made += [scratch((batch, 0), np.int32), scratch((batch, tokens), np.int32)]
        empty = [Buffer(np.empty((1, 0), dtype), written=True) for dtype in (np.int32, np.float32)]
        ranges = Buffer(np.zeros((1, 1, 2), np.float32), written=True)
        lengths = [Buffer(np.array([n], np.int32)) for n in (0, tokens)]
        arguments: list[Any] = [*empty, ranges, Buffer(cosines), *lengths, *made]
        numbers = [batch, tokens, layers, heads, 0, 0, 0, 0, THRESHOLD, GAMMA]
        launch(retain, (1,), [*arguments, *numbers], POLICY=0, ANY_HEAD=any_head, BLOCK=16)
        wanted = expected if layers > 1 else np.ones(tokens, np.float32)
        np.testing.assert_array_equal(made[0].array[0], wanted)


@pytest.mark.parametrize(("slots", "slack"), [(21, 6), (9, 2), (5, 5), (40, 0)])
def test_active_tokens(slots: int, slack: int) -> None:
    """Flags are those of A(c0); what lacks a sign bit is listed, in any state of the marks."""
    rng = np.random.default_rng(slots)
    sinks, window = 4, 5
    rows = make_rows(rng, slots, slack, sinks, window)
    magnitude = rng.uniform(0, 2, (ROWS, 2, CAPACITY, 3)).astype(np.float16)
    wanted, allowed = [], []
    for row in range(ROWS):
        c0 = Span(int(rows.past[row]), int(rows.total[row]), sinks, window).c0
        position = rows.position[row]
        read = active_slots(position, rows.similarity[row], (sinks, c0), "budget", slots - slack)
        lacking = rng.permutation(position[read])[:slack]
        marked = np.setdiff1d(position[read], lacking)
        magnitude[row, :, marked] = np.copysign(magnitude[row, :, marked], -1)
        wanted.append(np.sort(read))
        allowed.append(np.sort(lacking))
    flags, skipped = scratch((ROWS, slots), np.int32), scratch((ROWS, 1 + slack), np.int32)
    arguments: list[Any] = [Buffer(rows.position), Buffer(rows.similarity)]
    arguments += [Buffer(magnitude.view(np.int16)), Buffer(rows.past), Buffer(rows.total), 0]
    arguments += [flags, skipped]
    numbers = [2, slots, slack, CAPACITY, 3, sinks, window, 1, 2**30]
    launch(active, (ROWS,), [*arguments, *numbers], EVICTS=0, BLOCK=16)
    for row in range(ROWS):
        np.testing.assert_array_equal(np.flatnonzero(flags.array[row]), wanted[row])
        count = skipped.array[row, 0]
        np.testing.assert_array_equal(np.sort(skipped.array[row, 1 : 1 + count]), allowed[row])
        assert (skipped.array[row, 1 + count :] == -1).all()


def test_keys_hold_every_position() -> None:
    """A key orders fp32 numbers, then positions; the largest lies below what stands for all."""
    largest = ((0x7FFFFFFF + 0x80000000) << int(POSITION_BITS)) | (2 ** int(POSITION_BITS) - 1)
    assert largest < int(EVERY)
