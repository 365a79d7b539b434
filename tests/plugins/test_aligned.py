"""Aligned slerp of the reference: against plain loops, and what an alignment is for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minicache.plugins.reference import run_group
from tests.helpers import assert_close, chunks, make_attributes, make_text, poisoned_state
from tests.plugins.aligned_text import aligned_attributes, make_alignment, plain_turn, turned_text
from tests.plugins.plain import plain_slerp_mode
from tests.plugins.slerp_text import CAPACITY, SMALL, TOKENS, run_slerp
from tests.plugins.walk import CAPACITY as WALK_CAPACITY
from tests.plugins.walk import POLICIES, ReferenceGroup, walk
from tests.plugins.walk import SMALL as WALK_SMALL
from tests.tolerances import FP16_ULP, SAME_FORMULA

TWO = {"num_heads": 4, "kv_num_heads": 2}
VARIANTS: list[dict[str, Any]] = [
    {},
    {"segment_length": 8},
    {"segment_length": 8, "rotary_interleaved": 1, "key_bits": 16, "value_bits": 4},
    {"segment_length": 1, "magnitude": "upper", "code_layout": "tile"},
    {**TWO, "group_size": 3, "magnitude": "blended", "segment_length": 8, "value_bits": 16,
     "key_head_permutation": (0, 1, 1, 0, 1, 0), "value_head_permutation": (1, 0, 0, 1, 0, 1)},
    {**TWO, "retention": "budget", "segment_length": 8, "key_head_permutation": (1, 0, 0, 1)},
    {"retention": "threshold", "retention_threshold": 0.55, "group_size": 3},
    {"retention": "minmax", "retention_gamma": 0.3, "segment_length": 8, "code_layout": "tile"},
    {"retention": "threshold", "retention_scope": "any-head", "retention_threshold": 0.3, **TWO},
    {"has_sink": 1, "has_bias": 1, "softcap": 2.5, "scale": 0.4, "retention": "budget"},
    {"local_window_size": 9, "segment_length": 8},
    {"group_size": 1, "key_bits": 4},
    {"sinks": 0, "window": 0, "ring_slots": 1, "segment_length": 8},
]  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("sizes", [(1, 1), (2, 17)], ids=str)
def test_it_is_attention_over_vectors_restored_from_the_code_space(
    variant: dict[str, Any], sizes: tuple[int, ...]
) -> None:
    """Merged and compared where the encoder takes them; exact and retained tokens unmodified."""
    attributes = aligned_attributes(**SMALL | variant)
    tables = make_alignment(attributes)
    text = turned_text(attributes, tables, make_text(attributes, TOKENS, dtype=np.float64))
    calls = list(chunks(TOKENS, *sizes))
    actual, state = run_slerp(attributes, text, calls, tables=tables)
    expected = plain_slerp_mode(attributes, text, calls, turn=plain_turn(attributes, tables))
    for layer in range(attributes["group_size"]):
        assert_close(actual[layer], expected[layer], 2 * FP16_ULP, f"layer {layer}")
    if attributes["retention"] != "none":
        assert (state["retained_position"] >= 0).any()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("bits", [16, 8, 4])
def test_the_identity_is_plain_slerp(policy: str, bits: int) -> None:
    """Bit for bit: outputs, codes, magnitudes and retained tokens."""
    given = {**SMALL, **TWO, **POLICIES[policy], "key_bits": bits, "value_bits": bits}
    plain, attributes = make_attributes(**given), aligned_attributes(**given)
    tables = make_alignment(attributes, identity=True)
    text = make_text(plain, TOKENS, dtype=np.float64)
    calls = list(chunks(TOKENS, 7, 20))
    expected, before = run_slerp(plain, text, calls)
    actual, after = run_slerp(attributes, text, calls, tables=tables)
    np.testing.assert_array_equal(actual, expected)
    for name in before:
        np.testing.assert_array_equal(after[name].view(np.uint8), before[name].view(np.uint8), name)


@pytest.mark.parametrize("magnitude", ["own", "upper", "blended"])
@pytest.mark.parametrize("segment", [0, 8])
def test_magnitudes_are_those_of_the_vectors(magnitude: str, segment: int) -> None:
    """An alignment keeps lengths, and stored ones are exactly those that plain slerp stores."""
    given = {**SMALL, **TWO, "magnitude": magnitude, "key_bits": 16, "value_bits": 16}
    plain, attributes = (
        make_attributes(**given),
        aligned_attributes(**given, segment_length=segment),
    )
    text = make_text(plain, TOKENS, dtype=np.float64)
    _, before = run_slerp(plain, text, [(0, TOKENS)])
    _, after = run_slerp(attributes, text, [(0, TOKENS)], tables=make_alignment(attributes))
    for name in ("key_magnitude", "value_magnitude"):
        np.testing.assert_array_equal(after[name].view(np.uint16), before[name].view(np.uint16))


@pytest.mark.parametrize("group", [2, 4])
@pytest.mark.parametrize("segment", [0, 8])
def test_rotated_copies_are_restored_exactly(group: int, segment: int) -> None:
    """Layers of one content in bases of their own: no loss but fp16's, nothing to retain."""
    given = {**SMALL, **TWO, "group_size": group, "key_bits": 16, "value_bits": 16}
    retained = {"retention": "threshold", "retention_threshold": 0.99}
    attributes = aligned_attributes(**given, **retained, segment_length=segment)
    tables = make_alignment(attributes)
    text = make_text(attributes, TOKENS, dtype=np.float64, noise=0.0)
    text = turned_text(attributes, tables, text)
    calls = [(0, 20), (20, 10), (30, 10)]
    actual, state = run_slerp(attributes, text, calls, tables=tables)
    assert (state["retained_position"] == -1).all()
    wide = {**attributes, "window": TOKENS, "ring_slots": TOKENS + 6}
    exact, _ = run_slerp(wide, text, calls, tables=tables)
    assert_close(actual, exact, 4 * FP16_ULP)
    plain, state = run_slerp(make_attributes(**given, **retained), text, calls)
    assert (state["retained_position"] >= 0).all()
    assert np.abs(plain - exact).max() > 0.1 * np.abs(exact).max()


def test_ragged_rows_equal_rows_alone() -> None:
    """Batch rows of different lengths give what each gives alone."""
    attributes = aligned_attributes(**SMALL, **TWO, segment_length=8)
    tables, text = make_alignment(attributes), make_text(attributes, TOKENS, batch=2)
    state = poisoned_state(attributes, 2, CAPACITY)
    alone = [poisoned_state(attributes, 1, CAPACITY) for _ in range(2)]
    past = np.zeros(2, int)
    for new in ([17, 3], [1, 9], [0, 8], [1, 1]):
        attention, state = run_group(
            attributes, state, *text.call(list(past), new).arguments, tables=tables
        )
        for row in range(2):
            call = text.call(list(past), new)
            mine = [[array[row : row + 1] for array in x] for x in call.arguments[:3]]
            lengths = call.past[row : row + 1], call.total[row : row + 1]
            outputs, alone[row] = run_group(attributes, alone[row], *mine, *lengths, tables=tables)
            together = np.stack(attention)[:, row : row + 1]
            assert_close(together, np.stack(outputs), SAME_FORMULA, f"row {row}")
        past += new


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=20)
@given(data=st.data(), most=st.sampled_from((0, 3, WALK_CAPACITY)))
def test_going_back_equals_never_having_gone(policy: str, data: st.DataObject, most: int) -> None:
    """Whatever was dropped, up to X tokens, the rest of a text is that of a fresh run."""
    attributes = aligned_attributes(**WALK_SMALL, **POLICIES[policy], segment_length=8)
    tables = make_alignment(attributes)
    walk(
        data,
        attributes,
        lambda rows: ReferenceGroup(
            attributes, poisoned_state(attributes, rows, WALK_CAPACITY, most), tables
        ),
        tolerance=SAME_FORMULA,
        change=lambda text: turned_text(attributes, tables, text),
    )


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("key_decoder", (2, 16, 15), r"key_decoder has the shape \(2, 16, 15\), not \(2, 16, 16\)"),
        ("value_encoder", (2, 16, 16), r"not \(2, 16, 32\)"),
        ("rope_frequencies", (9,), "9 pairs"),
    ],
)
def test_wrong_tables_are_named(name: str, shape: tuple[int, ...], words: str) -> None:
    """A table of another shape is refused with both shapes."""
    attributes = aligned_attributes(**SMALL, **TWO, segment_length=8)
    tables = [{**table} for table in make_alignment(attributes)]
    tables[-1][name] = np.zeros(shape, np.float32)
    call = make_text(attributes, 4).call([0], [4])
    with pytest.raises(ValueError, match=words):
        state = poisoned_state(attributes, 1, CAPACITY)
        run_group(attributes, state, *call.arguments, tables=tables)
