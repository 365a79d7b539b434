"""slerp mode of the reference against plain loops: exact region, codes, retention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicache.plugins.reference import run_group
from minicache.plugins.reference.retention import active_slots
from tests.helpers import Text, assert_close, chunks, make_attributes, make_text, poisoned_state
from tests.plugins.plain import plain_attention, plain_slerp_mode
from tests.plugins.slerp_text import CAPACITY, SMALL, TOKENS, run_slerp
from tests.tolerances import FP16_ULP, SAME_FORMULA

VARIANTS: list[dict[str, Any]] = [
    {},
    {"key_bits": 16, "value_bits": 16},
    {"key_bits": 4, "value_bits": 16, "code_layout": "tile"},
    {"key_bits": 16, "value_bits": 4, "code_layout": "tile", "magnitude": "upper"},
    {"magnitude": "blended", "group_size": 3},
    {"group_size": 3, "retention": "threshold", "retention_threshold": 0.55},
    {"group_size": 1, "key_bits": 4},
    {
        "num_heads": 6,
        "kv_num_heads": 3,
        "group_size": 2,
        "retention": "budget",
        "key_head_permutation": (0, 1, 2, 2, 0, 1),
        "value_head_permutation": (1, 0, 2, 0, 2, 1),
    },
    {
        "num_heads": 4,
        "kv_num_heads": 2,
        "group_size": 3,
        "magnitude": "upper",
        "key_head_permutation": (0, 1, 1, 0, 1, 0),
    },
    {"retention": "minmax", "retention_gamma": 0.3},
    {"retention": "threshold", "retention_scope": "any-head", "retention_threshold": 0.3},
    {"retention": "budget", "magnitude": "blended", "code_layout": "tile"},
    {"has_sink": 1, "has_bias": 1, "softcap": 2.5, "scale": 0.4, "retention": "budget"},
    {"local_window_size": 9, "retention": "budget"},
    {"sinks": 0},
    {"window": 0, "ring_slots": 6},
    {"sinks": 0, "window": 0, "ring_slots": 1},
    {"slerp_t": 0.5, "group_size": 4},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("sizes", [(1, 1), (20,), (2, 17)], ids=str)
def test_slerp_mode_is_attention_over_restored_vectors(
    variant: dict[str, Any], sizes: tuple[int, ...]
) -> None:
    """Sinks, window and new tokens contribute unmodified, the others as restored or retained."""
    attributes = make_attributes(**SMALL | variant)
    text = make_text(attributes, TOKENS, dtype=np.float64)
    calls = list(chunks(TOKENS, *sizes))
    actual, state = run_slerp(attributes, text, calls)
    # The plain loops do not round magnitudes to fp16; that is worth one unit of fp16 in each token.
    expected = plain_slerp_mode(attributes, text, calls)
    for layer in range(attributes["group_size"]):
        assert_close(actual[layer], expected[layer], 2 * FP16_ULP, f"layer {layer}")
    if attributes["retention"] != "none":
        assert (state["retained_position"] >= 0).any()


def test_tokens_within_window_and_sinks_are_exact() -> None:
    """As long as nothing has left the window, slerp mode is full attention."""
    attributes = make_attributes(mode="slerp", window=20, sinks=4, ring_slots=24)
    text = make_text(attributes, 24, dtype=np.float64)
    actual, _ = run_slerp(attributes, text, list(chunks(24, 9)))
    for layer in range(2):
        arrays = text.query[layer, 0], list(text.key[layer, 0]), list(text.value[layer, 0])
        expected = plain_attention(*arrays, 0, scale=attributes["scale"])
        assert_close(actual[layer], expected, SAME_FORMULA)


def test_a_full_side_buffer_makes_everything_exact() -> None:
    """Opposite layers: all coded tokens are retained, and with M = C attention is exact."""
    attributes = make_attributes(**SMALL, retention="threshold", retention_threshold=0.9)
    text = make_text(attributes, TOKENS, dtype=np.float64)
    text.key[1], text.value[1] = -text.key[0], -3 * text.value[0]
    actual, state = run_slerp(attributes, text, list(chunks(TOKENS, 6)), retained=CAPACITY)
    coded = TOKENS - attributes["sinks"] - attributes["window"]
    assert (state["retained_position"] >= 0).sum() == coded
    for layer in range(2):
        arrays = text.query[layer, 0], list(text.key[layer, 0]), list(text.value[layer, 0])
        expected = plain_attention(*arrays, 0, scale=attributes["scale"])
        assert_close(actual[layer], expected, SAME_FORMULA)


def test_retained_and_merged_tokens_add_up() -> None:
    """Each coded token is either read from the side buffer, with sign bits, or from its code."""
    attributes = make_attributes(**SMALL, retention="budget", group_size=3)
    text = make_text(attributes, TOKENS, dtype=np.float64)
    _, state = run_slerp(attributes, text, list(chunks(TOKENS, 13)))
    coded = np.arange(attributes["sinks"], TOKENS - attributes["window"])
    held = state["retained_position"][0]
    border = int(coded[0]), int(coded[-1]) + 1
    slots = active_slots(held, state["retained_similarity"][0], border, "budget", 6)
    for kind in ("key", "value"):
        signed = np.signbit(state[f"{kind}_magnitude"][0][:, coded])
        assert (signed == np.isin(coded, held[slots])[None, :, None]).all()
    assert signed[0, :, 0].sum() + (~signed[0, :, 0]).sum() == coded.size
    assert sorted(held) == sorted(set(held) & set(coded))


def test_retained_magnitudes_of_zero_carry_the_sign() -> None:
    """A token whose first layer is zero stores -0.0 when it is retained for the other one."""
    attributes = make_attributes(**SMALL, retention="budget")
    text = make_text(attributes, TOKENS, dtype=np.float64)
    text.key[0, 0, 5] = 0
    text.value[:, 0, 5] = -text.value[::-1, 0, 5]
    text.value[1, 0, 5] = -text.value[0, 0, 5]
    _, state = run_slerp(attributes, text, [(0, TOKENS)], retained=CAPACITY)
    magnitude = state["key_magnitude"][0, 0, 5, 0]
    assert magnitude == 0
    assert np.signbit(magnitude)


def test_huge_magnitudes_saturate() -> None:
    """Magnitudes beyond fp16 are stored as 65504, not as infinity."""
    attributes = make_attributes(**SMALL, key_bits=16, value_bits=16)
    text = make_text(attributes, TOKENS, dtype=np.float64)
    text.value *= 1e6
    _, state = run_slerp(attributes, text, [(0, TOKENS)])
    assert (state["value_magnitude"][0, :, 3:35] == 65504).all()


def test_sinks_are_never_encoded() -> None:
    """Prefill from nothing writes no code for the sinks, and does not let them be retained."""
    attributes = make_attributes(**SMALL, retention="budget")
    text = make_text(attributes, TOKENS, dtype=np.float64)
    text.key[1, 0, :3] = -text.key[0, 0, :3]
    _, state = run_slerp(attributes, text, [(0, TOKENS)])
    assert (state["key_code"][0, :, :3] == 0x7F).all()
    assert np.isnan(state["key_magnitude"][0, :, :3]).all()
    assert (state["retained_position"] >= 3).all()


def test_only_the_encoded_positions_are_written() -> None:
    """Codes beyond c1 keep their bytes, in both layouts."""
    for layout in ("row", "tile"):
        attributes = make_attributes(**SMALL, code_layout=layout, retention="threshold")
        text = make_text(attributes, TOKENS, dtype=np.float64)
        _, state = run_slerp(attributes, text, [(0, 21)])
        assert np.isnan(state["value_magnitude"][0, :, 16:]).all()
        tiles = state["value_code"][0].reshape(-1, CAPACITY // 4, 4 * 16)
        assert (tiles[:, 4:] == 0x7F).all()
        assert not (tiles[:, :4] == 0x7F).all()


def test_ragged_rows_equal_rows_alone() -> None:
    """Batch rows of different lengths give what each gives alone, byte by byte."""
    attributes = make_attributes(**SMALL, retention="budget", code_layout="tile")
    text = make_text(attributes, TOKENS, batch=2)
    together = poisoned_state(attributes, 2, CAPACITY, 4)
    alone = [poisoned_state(attributes, 1, CAPACITY, 4) for _ in range(2)]
    past = np.zeros(2, int)
    for new in ([17, 3], [1, 9], [0, 8], [1, 1], [2, 0]):
        call = text.call(list(past), new)
        attention, together = run_group(attributes, together, *call.arguments)
        for row in range(2):
            mine = Text(*(x[:, row : row + 1] for x in (text.query, text.key, text.value)))
            call = mine.call([past[row]], [new[row]], slots=max(new))
            expected, alone[row] = run_group(attributes, alone[row], *call.arguments)
            np.testing.assert_array_equal(np.stack(attention)[:, row], np.stack(expected)[:, 0])
            for name, array in together.items():
                np.testing.assert_array_equal(array[row], alone[row][name][0], name)
        past += new


def test_readers_return_attention_only() -> None:
    """The reference leaves its inputs alone, whichever node runs."""
    attributes = make_attributes(**SMALL, retention="budget")
    text = make_text(attributes, TOKENS)
    state = poisoned_state(attributes, 1, CAPACITY, 4)
    copies = {name: array.copy() for name, array in state.items()}
    run_group(attributes, state, *text.call([0], [20]).arguments)
    for name, array in state.items():
        np.testing.assert_array_equal(array, copies[name])
