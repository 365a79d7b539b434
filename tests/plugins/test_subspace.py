"""subspace mode of the reference against plain loops, and its state over calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicache.plugins.reference import new_state, row_to_tile, run_group
from tests.helpers import Text, assert_close, chunks, make_text, poisoned_state
from tests.plugins.plain import plain_attention
from tests.plugins.plain_subspace import plain_subspace_mode
from tests.plugins.subspace_text import (
    CAPACITY,
    SMALL,
    TOKENS,
    State,
    make_tables,
    run_subspace,
    subspace_attributes,
)
from tests.tolerances import SAME_FORMULA

THREE = {"num_heads": 6, "kv_num_heads": 3}
FOUR = {"num_heads": 4, "kv_num_heads": 4}
VARIANTS: list[dict[str, Any]] = [
    {},
    {"segment_length": 0},
    {"segment_length": 8, "rotary_interleaved": 1},
    {"segment_length": 1, "group_size": 2},
    {"segment_length": 100}, {"local_window_size": 9}, {"sinks": 0}, {"sinks": 11},
    {"group_size": 2, "key_bits": (8, 16), "value_bits": (2, 32), "code_layout": "tile"},
    {"group_size": 3, "key_bits": (4, 24), "value_bits": (8, 8, 2, 8), "code_layout": "tile"},
    {**THREE, "code_heads": 1},
    {**THREE, "code_heads": 3, "group_size": 2},
    {**FOUR, "code_heads": 2, "group_size": 3},
    {**FOUR, "code_heads": 2, "group_size": 2, "code_layout": "tile",
     "key_head_permutation": (3, 1, 0, 2, 1, 2, 3, 0),
     "value_head_permutation": (0, 2, 1, 3, 3, 2, 1, 0)},
    {**THREE, "code_heads": 1, "group_size": 2, "key_head_permutation": (2, 0, 1, 0, 1, 2)},
    {**FOUR, "code_heads": 4, "value_head_permutation": (1, 2, 3, 0)},
    {"has_sink": 1, "has_bias": 1, "softcap": 2.5, "scale": 0.4, "group_size": 2},
    {"window": 0, "ring_slots": 6},
    {"sinks": 0, "window": 0, "ring_slots": 1},
]  # fmt: skip


@pytest.mark.parametrize(
    ("variant", "sizes"),
    [(variant, (2, 17)) for variant in VARIANTS] + [(VARIANTS[n], (1, 1)) for n in (0, 8, 13, -1)],
    ids=str,
)
def test_subspace_mode_is_attention_over_restored_vectors(
    variant: dict[str, Any], sizes: tuple[int, ...]
) -> None:
    """Sinks, window and new tokens contribute unmodified, all others as restored."""
    attributes = subspace_attributes(**SMALL | variant)
    tables = make_tables(attributes)
    text = make_text(attributes, TOKENS, dtype=np.float64)
    calls = list(chunks(TOKENS, *sizes))
    actual, _ = run_subspace(attributes, tables, text, calls)
    expected = plain_subspace_mode(attributes, text, calls, tables)
    for layer in range(attributes["group_size"]):
        assert_close(actual[layer], expected[layer], SAME_FORMULA, f"layer {layer}")


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("interleaved", [0, 1])
def test_partial_rotary_and_both_types_of_tables(dtype: Any, interleaved: int) -> None:
    """RoPE turns the first 6 of 16 components; encoders and decoders are fp32 or fp16."""
    attributes = subspace_attributes(**SMALL, group_size=2, rotary_interleaved=interleaved)
    tables = make_tables(attributes, dtype=dtype, rotary=6)
    text = make_text(attributes, TOKENS, dtype=np.float64)
    calls = list(chunks(TOKENS, 9, 20))
    actual, _ = run_subspace(attributes, tables, text, calls)
    assert_close(actual, plain_subspace_mode(attributes, text, calls, tables), SAME_FORMULA)


def test_tokens_within_window_and_sinks_are_exact() -> None:
    """As long as nothing has left the window, subspace mode is full attention."""
    attributes = subspace_attributes(window=20, sinks=4, ring_slots=24, segment_length=8)
    text = make_text(attributes, 24, dtype=np.float64)
    actual, _ = run_subspace(attributes, make_tables(attributes), text, list(chunks(24, 9)))
    arrays = text.query[0, 0], list(text.key[0, 0]), list(text.value[0, 0])
    expected = plain_attention(*arrays, 0, scale=attributes["scale"])
    assert_close(actual[0], expected, SAME_FORMULA)


def coded_equal(attributes: dict[str, Any], a: State, b: State, total: int) -> None:
    """Codes and magnitudes of two states are the same bytes at ``total`` tokens (row layout)."""
    coded = slice(attributes["sinks"], max(attributes["sinks"], total - attributes["window"]))
    for name in ("key_code", "value_code", "key_magnitude", "value_magnitude"):
        np.testing.assert_array_equal(a[name][:, :, coded], b[name][:, :, coded], name)


def test_prefill_may_be_cut_anywhere() -> None:
    """With exact slots in the model's type, codes do not depend on how the text was cut."""
    attributes = subspace_attributes(**SMALL, group_size=2)
    tables, text = make_tables(attributes), make_text(attributes, TOKENS, dtype=np.float64)
    _, whole = run_subspace(attributes, tables, text, [(0, TOKENS)])
    for sizes in ((1,), (7, 7), (30,)):
        _, cut = run_subspace(attributes, tables, text, list(chunks(TOKENS, *sizes)))
        coded_equal(attributes, whole, cut, TOKENS)


@given(past=st.integers(0, 30), new=st.integers(1, 6))
def test_running_a_call_twice_changes_nothing(past: int, new: int) -> None:
    """For S <= X, the second run of a call gives the same bytes of state and of outputs."""
    attributes = subspace_attributes(**SMALL, group_size=2)
    tables, text = make_tables(attributes), make_text(attributes, TOKENS, dtype=np.float64)
    _, state = run_subspace(attributes, tables, text, [(0, past)] if past else [])
    first, once = run_subspace(attributes, tables, text, [(past, new)], state)
    second, twice = run_subspace(attributes, tables, text, [(past, new)], once)
    np.testing.assert_array_equal(first, second)
    for name in once:
        np.testing.assert_array_equal(once[name].view(np.uint8), twice[name].view(np.uint8), name)


@given(length=st.integers(1, 30), back=st.integers(0, 6))
def test_going_back_equals_never_having_gone(length: int, back: int) -> None:
    """Rewinding by up to X tokens and going on with another text is a fresh run of that text."""
    attributes = subspace_attributes(**SMALL, group_size=2)
    tables, start = make_tables(attributes), length - min(back, length)
    text, other = (make_text(attributes, TOKENS, dtype=np.float64, seed=s) for s in (1, 2))
    for name in ("query", "key", "value"):
        getattr(other, name)[:, :, :start] = getattr(text, name)[:, :, :start]
    later = [(start, 4), (start + 4, 1)]
    _, state = run_subspace(attributes, tables, text, [(0, length)])
    rewound, state = run_subspace(attributes, tables, other, later, state)
    _, fresh = run_subspace(attributes, tables, other, [(0, start)] if start else [])
    expected, fresh = run_subspace(attributes, tables, other, later, fresh)
    np.testing.assert_array_equal(rewound[:, start : start + 5], expected[:, start : start + 5])
    coded_equal(attributes, state, fresh, start + 5)


def test_only_the_encoded_positions_are_written() -> None:
    """Sinks and what lies beyond c1 keep their poison; tiles hold the bytes of the rows."""
    states = []
    for layout in ("row", "tile"):
        attributes = subspace_attributes(**SMALL, code_layout=layout)
        text = make_text(attributes, TOKENS, dtype=np.float64)
        _, state = run_subspace(attributes, make_tables(attributes), text, [(0, 21)])
        for kind in ("key", "value"):
            written = np.isfinite(state[f"{kind}_magnitude"][0, 0, :, 0])
            assert np.flatnonzero(written).tolist() == list(range(3, 16))
        states.append(state)
    for kind in ("key", "value"):
        rows, tiles = (state[f"{kind}_code"] for state in states)
        assert (rows[:, :, :3] == 0x7F).all()
        assert (rows[:, :, 16:] == 0x7F).all()
        np.testing.assert_array_equal(row_to_tile(rows, kind), tiles)


def test_ragged_rows_equal_rows_alone() -> None:
    """Batch rows of different lengths give what each gives alone, byte by byte."""
    attributes = subspace_attributes(**SMALL, group_size=2, **THREE, code_heads=1)
    tables, text = make_tables(attributes), make_text(attributes, TOKENS, batch=2)
    together = poisoned_state(attributes, 2, CAPACITY)
    alone = [poisoned_state(attributes, 1, CAPACITY) for _ in range(2)]
    past = np.zeros(2, int)
    for new in ([17, 3], [1, 9], [0, 8], [1, 1], [2, 0]):
        call = text.call(list(past), new)
        attention, together = run_group(attributes, together, *call.arguments, tables=tables)
        for row in range(2):
            mine = Text(*(x[:, row : row + 1] for x in (text.query, text.key, text.value)))
            call = mine.call([past[row]], [new[row]], slots=max(new))
            arguments = attributes, alone[row], *call.arguments
            expected, alone[row] = run_group(*arguments, tables=tables)
            np.testing.assert_array_equal(np.stack(attention)[:, row], np.stack(expected)[:, 0])
            for name, array in together.items():
                np.testing.assert_array_equal(array[row], alone[row][name][0], name)
        past += new


@pytest.mark.parametrize("magnitude", ["own", "upper"])
def test_state_shapes(magnitude: str) -> None:
    """One code and one magnitude per code head, whatever ``magnitude`` says; no side buffer."""
    bits = {"key_bits": (8, 16, 4, 16, 2, 32), "value_bits": (4, 64)}
    attributes = subspace_attributes(
        **FOUR, code_heads=2, group_size=3, magnitude=magnitude, window=8, ring_slots=12, **bits
    )
    shapes = {name: array.shape for name, array in new_state(attributes, 2, 64).items()}
    assert shapes == {
        "key_code": (2, 2, 64, 32),
        "value_code": (2, 2, 64, 32),
        "key_magnitude": (2, 2, 64, 1),
        "value_magnitude": (2, 2, 64, 1),
        "exact_key": (2, 3, 4, 16, 16),
        "exact_value": (2, 3, 4, 16, 16),
    }


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"has_decoder": 0}, "has_decoder is 0"),
    ({"retention": "budget"}, "retention is 'budget'"),
    ({**FOUR, "code_heads": 3}, "code_heads 3 is no divisor of kv_num_heads 4"),
    ({"key_bits": (16, 16)}, r"key_bits is \(16, 16\)"),
    ({"key_bits": (8, 12)}, "multiple of 8"),
    ({"key_bits": (8, 0)}, "multiple of 8"),
    ({"value_bits": (4, 8, 8, 8)}, "value_bits"),
    ({"value_bits": (4, 8, 4, 8)}, "value_bits"),
    ({"value_bits": (4, 8, 2)}, "value_bits"),
    ({"value_bits": ()}, "value_bits"),
    ({"segment_length": -1}, "segment_length is -1"),
    ({"window": 8, "ring_slots": 4}, "ring_slots 4"),
    ({**FOUR, "key_head_permutation": (0, 1, 2, 2)}, "key_head_permutation"),
]


@pytest.mark.parametrize(("change", "words"), REFUSED, ids=str)
def test_contradicting_attributes_are_refused(change: dict[str, Any], words: str) -> None:
    """Attributes that contradict each other are named with what was found."""
    good = subspace_attributes(**SMALL)
    text, tables = make_text(good, 4), make_tables(good)
    attributes = subspace_attributes(**SMALL | change)
    with pytest.raises(ValueError, match=words):
        run_group(attributes, {}, *text.call([0], [4]).arguments, tables=tables)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("key_decoder", lambda x: x[:, :-8]),
        ("key_decoder", lambda x: x.swapaxes(1, 2)),
        ("value_decoder", lambda x: x[:1]),
        ("key_encoder", lambda x: x[..., :16]),
        ("value_encoder", lambda x: np.concatenate([x, x])),
        ("key_step", lambda x: x[0]),
        ("value_step", lambda x: x[:, 1:]),
        ("rope_frequencies", lambda x: x[None]),
        ("rope_frequencies", lambda x: np.concatenate([x, x])),
        ("rope_frequencies", lambda x: x[:0]),
        ("rope_frequencies", lambda x: x.astype(np.float64)),
        ("value_decoder", lambda x: x.astype(np.float64)),
        ("key_step", lambda x: x.astype(np.float16)),
    ],
)
def test_wrong_tables_are_named(name: str, change: Any) -> None:
    """A table that does not fit heads, layers and components is refused by name."""
    attributes = subspace_attributes(**SMALL, **FOUR, code_heads=2, group_size=2)
    tables, text = make_tables(attributes), make_text(attributes, 4)
    tables[-1][name] = change(tables[-1][name])
    state = poisoned_state(attributes, 1, CAPACITY)
    with pytest.raises(ValueError, match=name):
        run_group(attributes, state, *text.call([0], [4]).arguments, tables=tables)
