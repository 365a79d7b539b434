"""Exact mode of the reference against attention in plain loops over a growing list of tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicache.plugins.reference import run_group
from minicache.runtime.errors import CapacityError
from tests.helpers import Text, assert_close, chunks, make_attributes, make_text, poisoned_state
from tests.plugins.plain import plain_attention
from tests.tolerances import SAME_FORMULA

TOKENS = 23
CAPACITY = 32


def run_exact(
    attributes: dict[str, Any], text: Text, calls: list[tuple[int, int]], capacity: int = CAPACITY
) -> np.ndarray:
    """Attention ``[B, T, H, D]`` of all rows, cut into the same calls, in poisoned memory."""
    _, batch, tokens, heads, size = text.query.shape
    state = poisoned_state(attributes, batch, capacity, dtype=text.key.dtype)
    out = np.full((batch, tokens, heads, size), np.nan)
    for past, new in calls:
        call = text.call([past] * batch, [new] * batch, capacity=capacity)
        (attention,), state = run_group(attributes, state, *call.arguments)
        out[:, past : past + new] = attention.reshape(batch, new, heads, size)
    return out


def plain_exact(attributes: dict[str, Any], text: Text, row: int = 0) -> np.ndarray:
    """Attention ``[T, H, D]`` of one row in one go, by plain loops."""
    return plain_attention(
        text.query[0, row],
        list(text.key[0, row]),
        list(text.value[0, row]),
        0,
        scale=attributes["scale"],
        softcap=attributes["softcap"],
        local_window=attributes["local_window_size"],
        bias=None if text.bias is None else text.bias[row],
        sink=text.sink,
    )


VARIANTS: list[dict[str, Any]] = [
    {},
    {"num_heads": 4, "kv_num_heads": 2, "scale": 0.7},
    {"softcap": 3.0},
    {"has_bias": 1},
    {"has_sink": 1},
    {"local_window_size": 5, "ring_slots": 9},
    {"local_window_size": 1, "ring_slots": 1},
    {"local_window_size": 5, "ring_slots": 9, "has_sink": 1, "has_bias": 1, "softcap": 2.0},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_exact_mode_is_full_attention(variant: dict[str, Any]) -> None:
    """Prefill in two chunks, then single tokens: what plain attention gives in one go."""
    attributes = make_attributes(**variant)
    text = make_text(attributes, TOKENS, batch=2, dtype=np.float64)
    actual = run_exact(attributes, text, list(chunks(TOKENS, 7, 9)))
    for row in range(2):
        assert_close(actual[row], plain_exact(attributes, text, row), SAME_FORMULA, f"row {row}")


@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.sampled_from([0, 4]))
def test_chunking_does_not_matter(sizes: list[int], window: int) -> None:
    """Every way to cut a text into calls gives the same attention."""
    attributes = make_attributes(local_window_size=window, ring_slots=window + 3)
    cut, past = [], 0
    for size in sizes:
        if past + size <= TOKENS:
            cut.append((past, size))
            past += size
    cut += list(chunks(TOKENS))[past:]
    text = make_text(attributes, TOKENS, dtype=np.float64)
    whole = run_exact(attributes, text, [(0, TOKENS)])
    assert_close(run_exact(attributes, text, cut), whole, SAME_FORMULA)


def test_a_sliding_window_outlives_its_capacity() -> None:
    """With a window as large as the ring allows, more tokens than C may pass through."""
    attributes = make_attributes(local_window_size=4, ring_slots=6)
    text = make_text(attributes, 40, dtype=np.float64)
    actual = run_exact(attributes, text, list(chunks(40, 10)), capacity=16)
    assert_close(actual[0], plain_exact(attributes, text), SAME_FORMULA)


def test_a_cache_smaller_than_the_window_bounds_the_total() -> None:
    """Where C is below the window, old tokens are still visible: C is a capacity after all."""
    attributes = make_attributes(local_window_size=20, ring_slots=24)
    text = make_text(attributes, TOKENS, dtype=np.float64)
    assert_close(
        run_exact(attributes, text, [(0, 15), (15, 1)], capacity=16)[0, :16],
        plain_exact(attributes, text)[:16],
        SAME_FORMULA,
    )
    with pytest.raises(CapacityError, match=r"total_lengths 17.* 16 tokens"):
        run_exact(attributes, text, [(0, 16), (16, 1)], capacity=16)


def test_ragged_rows_equal_rows_alone() -> None:
    """Rows of different lengths, padded with NaN on the right, do not see each other."""
    attributes = make_attributes(num_heads=4, kv_num_heads=2, has_bias=1, has_sink=1)
    text = make_text(attributes, TOKENS, batch=3, dtype=np.float64)
    state = poisoned_state(attributes, 3, CAPACITY, dtype=np.float64)
    lengths = np.zeros(3, int)
    for new in ([7, 2, 0], [3, 9, 4], [1, 1, 1], [0, 5, 2]):
        call = text.call(list(lengths), new, capacity=CAPACITY)
        (attention,), state = run_group(attributes, state, *call.arguments)
        for row, count in enumerate(new):
            at = slice(lengths[row], lengths[row] + count)
            actual = attention[row, :count].reshape(count, 4, 16)
            assert_close(actual, plain_exact(attributes, text, row)[at], SAME_FORMULA)
            assert not attention[row, count:].any()
        lengths += new


def test_an_empty_row_leaves_its_state() -> None:
    """A row without new tokens outputs zeros and writes nothing."""
    attributes = make_attributes()
    state = poisoned_state(attributes, 2, CAPACITY, dtype=np.float32)
    call = make_text(attributes, TOKENS, batch=2).call([0, 0], [5, 0])
    (attention,), after = run_group(attributes, state, *call.arguments)
    assert not attention[1].any()
    for name in state:
        np.testing.assert_array_equal(after[name][1], state[name][1])


def test_only_the_slots_of_new_tokens_are_written() -> None:
    """Position p goes to slot p, with a sliding window to p mod slots; the rest keeps its bytes."""
    for variant, slots in (({}, CAPACITY), ({"local_window_size": 4, "ring_slots": 6}, 6)):
        attributes = make_attributes(**variant)
        text = make_text(attributes, TOKENS)
        state = poisoned_state(attributes, 1, CAPACITY, dtype=np.float32)
        call = text.call([0], [3])
        _, after = run_group(attributes, state, *call.arguments)
        assert np.isfinite(after["exact_key"][0, 0, :, :3]).all()
        assert np.isnan(after["exact_key"][0, 0, :, 3:]).all()
        _, after = run_group(attributes, after, *text.call([3], [8]).arguments)
        for p in range(11 - min(slots, 11), 11):
            written = after["exact_value"][0, 0, :, p % slots]
            np.testing.assert_array_equal(written, text.value[0, 0, p])


def test_nothing_visible_gives_zeros() -> None:
    """A bias of -inf everywhere hides every token: the output is zero, not NaN."""
    attributes = make_attributes(has_bias=1)
    text = make_text(attributes, TOKENS)
    assert text.bias is not None
    text.bias[:, :, 2] = -np.inf
    state = poisoned_state(attributes, 1, CAPACITY, dtype=np.float32)
    (attention,), _ = run_group(attributes, state, *text.call([0], [5], capacity=32).arguments)
    assert not attention[0, 2].any()
    assert np.isfinite(attention).all()
    assert attention[0, 3].any()


@pytest.mark.parametrize(
    ("past", "new", "error", "words"),
    [
        ([0, 30], [1, 3], CapacityError, "batch row 1: past_lengths 30, total_lengths 33.* 32 "),
        ([-1, 0], [1, 1], ValueError, "batch row 0: past_lengths -1"),
        ([0, 5], [1, -2], ValueError, "batch row 1: past_lengths 5, total_lengths 3"),
        ([0, 0], [4, 1], ValueError, "batch row 0.* 4 new tokens, but the call has 3"),
    ],
)
def test_impossible_lengths_name_row_and_values(
    past: list[int], new: list[int], error: type[Exception], words: str
) -> None:
    """Lengths that do not fit raise an error with the batch row and the numbers."""
    attributes = make_attributes()
    state = poisoned_state(attributes, 2, CAPACITY, dtype=np.float32)
    call = make_text(attributes, TOKENS, batch=2).call([0, 0], [3, 3])
    call.past, call.total = np.array(past, np.int32), np.add(past, new).astype(np.int32)
    with pytest.raises(error, match=words):
        run_group(attributes, state, *call.arguments)


def test_the_cache_can_be_filled_to_the_last_slot() -> None:
    """A total length of exactly C works."""
    attributes = make_attributes()
    text = make_text(attributes, CAPACITY, dtype=np.float64)
    actual = run_exact(attributes, text, [(0, CAPACITY - 1), (CAPACITY - 1, 1)])
    assert_close(actual[0], plain_exact(attributes, text), SAME_FORMULA)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"has_decoder": 1}, ValueError, "has_decoder is 1"),
        ({"mode": "slerp", "has_decoder": 1, "segment_length": -1}, ValueError, "segment_length"),
        ({"num_heads": 3, "kv_num_heads": 2}, ValueError, "num_heads 3"),
        ({"group_size": 2}, ValueError, "group_size 2"),
        ({"mode": "slerp", "key_bits": 2}, ValueError, "key_bits"),
        ({"mode": "slerp", "window": 8, "ring_slots": 4}, ValueError, "ring_slots 4"),
        (
            {"mode": "slerp", "kv_num_heads": 2, "value_head_permutation": (0, 1, 1, 1)},
            ValueError,
            "value_head_permutation",
        ),
        ({"mode": "slerp", "kv_num_heads": 2, "code_heads": 1}, ValueError, "code_heads 1"),
    ],
)
def test_contradicting_attributes_are_refused(
    given: dict[str, Any], error: type[Exception], words: str
) -> None:
    """Attributes that contradict each other are named, and unsupported modes say so."""
    attributes = make_attributes(**given)
    with pytest.raises(error, match=words):
        state = poisoned_state(attributes, 1, CAPACITY)
        run_group(attributes, state, *make_text(attributes, 4).call([0], [4]).arguments)


def test_wrong_shapes_are_named() -> None:
    """An array of the wrong shape is refused with its name and both shapes."""
    attributes = make_attributes()
    state = poisoned_state(attributes, 1, CAPACITY)
    call = make_text(attributes, 4).call([0], [4])
    call.keys[0] = call.keys[0][:, :3]
    with pytest.raises(ValueError, match=r"key has the shape \(1, 3, 16\), not \(1, 4, 16\)"):
        run_group(attributes, state, *call.arguments)
