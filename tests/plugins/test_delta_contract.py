"""Deltas of a pair in the reference: their states, rows, going back, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minicache.exporter import schemas
from minicache.plugins.reference import new_state, run_group
from tests.helpers import assert_close, make_attributes, make_text, poisoned_state
from tests.plugins.delta_text import delta_attributes, tables_of
from tests.plugins.slerp_text import CAPACITY, SMALL, TOKENS
from tests.plugins.walk import CAPACITY as WALK_CAPACITY
from tests.plugins.walk import POLICIES, ReferenceGroup, walk
from tests.plugins.walk import SMALL as WALK_SMALL
from tests.tolerances import SAME_FORMULA

TWO = {"num_heads": 4, "kv_num_heads": 2}
KINDS: list[dict[str, int]] = [{"delta_bits": 4}, {"delta_bits": 2}, {"delta_rank": 1}]


def test_ragged_rows_equal_rows_alone() -> None:
    """Batch rows of different lengths give what each gives alone, and the same bytes of state."""
    attributes = delta_attributes(**SMALL, **TWO, code_layout="tile")
    text = make_text(attributes, TOKENS, batch=2, dtype=np.float64)
    state = poisoned_state(attributes, 2, CAPACITY)
    alone = [poisoned_state(attributes, 1, CAPACITY) for _ in range(2)]
    past = np.zeros(2, int)
    for new in ([17, 3], [1, 9], [0, 8], [1, 1]):
        call = text.call(list(past), new)
        attention, state = run_group(attributes, state, *call.arguments)
        for row in range(2):
            mine = [[array[row : row + 1] for array in x] for x in call.arguments[:3]]
            lengths = call.past[row : row + 1], call.total[row : row + 1]
            outputs, alone[row] = run_group(attributes, alone[row], *mine, *lengths)
            together = np.stack(attention)[:, row : row + 1]
            assert_close(together, np.stack(outputs), SAME_FORMULA, f"row {row}")
            for name, array in alone[row].items():
                assert array.tobytes() == state[name][row].tobytes(), name
        past += new


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=15)
@given(data=st.data(), most=st.sampled_from((0, 3, WALK_CAPACITY)), kind=st.sampled_from(KINDS))
def test_going_back_equals_never_having_gone(
    policy: str, data: st.DataObject, most: int, kind: dict[str, int]
) -> None:
    """Whatever was dropped, up to X tokens, the rest of a text is that of a fresh run."""
    attributes = delta_attributes(**WALK_SMALL, **POLICIES[policy], **kind, code_layout="tile")
    tables = tables_of(attributes)

    def make(rows: int) -> ReferenceGroup:
        state = poisoned_state(attributes, rows, WALK_CAPACITY, most)
        return ReferenceGroup(attributes, state, tables)

    walk(data, attributes, make, tolerance=SAME_FORMULA)


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ({"delta_bits": 4, "code_layout": "tile"}, 8),
        ({"delta_bits": 2}, 4),
        ({"delta_bits": 16}, 32),
        ({"delta_rank": 1}, 4),
        ({"delta_rank": 3}, 8),
    ],
    ids=str,
)
def test_states_are_packed_like_codes(given: dict[str, Any], size: int) -> None:
    """Bytes per token and head, padded to four, and one ratio."""
    attributes = delta_attributes(**SMALL, **TWO, **given)
    state = new_state(attributes, 2, CAPACITY)
    for kind in ("key", "value"):
        assert state[f"{kind}_delta"].shape == (2, 2, CAPACITY, size)
        assert state[f"{kind}_delta_ratio"].shape == (2, 2, CAPACITY, 1)
        assert state[f"{kind}_delta_ratio"].dtype == np.float16
    basis = [name for name in schemas.input_names(attributes) if name.endswith("basis")]
    assert basis == (["key_delta_basis", "value_delta_basis"] if "delta_rank" in given else [])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"delta_bits": 8}, "delta_bits is 8, not 0"),
        ({"delta_rank": 17}, "delta_rank is 17, not within 0..head_size 16"),
        ({"delta_rank": -1}, "delta_rank is -1"),
        ({"delta_bits": 4, "delta_rank": 1}, "one or the other"),
        ({"delta_bits": 4, "group_size": 3}, "not of group_size 3"),
        ({"delta_bits": 4, "slerp_t": 0.6}, "not at 0.6"),
        ({"delta_bits": 4, "mode": "exact", "group_size": 1}, "in mode 'exact'"),
        ({"delta_bits": 2, "head_size": 18}, "do not fill bytes with head_size 18"),
    ],
    ids=str,
)
def test_contradictions_are_named(given: dict[str, Any], words: str) -> None:
    """What only a pair that is merged halfway has is refused elsewhere, with the values."""
    attributes = make_attributes(**{"mode": "slerp", "slerp_t": 0.5, "group_size": 2, **given})
    call = make_text(attributes, 4).call([0], [4])
    with pytest.raises(ValueError, match=words):
        run_group(attributes, {}, *call.arguments)


def test_a_basis_of_another_shape_is_named() -> None:
    """Both shapes are told."""
    attributes = delta_attributes(**SMALL, delta_rank=2)
    tables = [{**table} for table in tables_of(attributes)]
    tables[0]["value_delta_basis"] = np.zeros((1, 3, 16), np.float32)
    call, state = make_text(attributes, 4).call([0], [4]), poisoned_state(attributes, 1, CAPACITY)
    words = r"value_delta_basis has the shape \(1, 3, 16\), not \(1, 2, 16\)"
    with pytest.raises(ValueError, match=words):
        run_group(attributes, state, *call.arguments, tables=tables)
