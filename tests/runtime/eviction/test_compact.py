"""Closing gaps: each state whose slots hold tokens moves, and nothing else does."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicache.exporter import schemas
from minicache.runtime.eviction.compact import compact_row, slot_states
from minicache.runtime.eviction.slot_move import SlotMove

CAPACITY, HELD = 64, 50
EXACT = {"mode": "exact", "num_heads": 2, "kv_num_heads": 2, "head_size": 4, "evicts": 1}
CODED = {
    **EXACT,
    "mode": "slerp", "group_size": 2, "group_slot": 1, "key_bits": [16, 4], "value_bits": [16, 4],
    "delta_bits": 16, "window": 4, "ring_slots": 8, "slerp_t": 0.5,
}  # fmt: skip


@pytest.mark.parametrize("attributes", [EXACT, CODED], ids=["exact", "coded"])
def test_all_slots_of_a_row_move_together(attributes: dict[str, object]) -> None:
    """Also the attention that tokens got; sinks, ring and the other row stay."""
    full = schemas.attributes_with_defaults({**attributes, "observes": -1})
    rng = np.random.default_rng(0)
    group = {
        name: rng.standard_normal(schemas.state_shape(name, full, 2, CAPACITY)).astype(np.float32)
        for name in schemas.state_names(full)
    }
    group["evicted"] = np.zeros((2, 2), np.int32)
    before = {name: array.copy() for name, array in group.items()}
    gone = np.zeros(HELD, bool)
    gone[7:23] = True
    compact_row(group, 1, gone, length=0, tiled=False)
    moving = set(slot_states(group))
    assert "attention_mass" in moving and ("exact_key" in moving) == (attributes is EXACT)
    assert group["evicted"].tolist() == [[0, 0], [0, 16]]
    for name in set(group) - {"evicted"}:
        np.testing.assert_array_equal(group[name][0], before[name][0])
        if name not in moving:
            np.testing.assert_array_equal(group[name][1], before[name][1])
            continue
        axis = before[name].shape.index(CAPACITY) - 1
        kept = np.delete(before[name][1].take(range(HELD), axis), np.flatnonzero(gone), axis)
        np.testing.assert_array_equal(group[name][1].take(range(HELD - 16), axis), kept)


@given(st.lists(st.booleans(), min_size=1, max_size=40).filter(any))
def test_runs_are_the_whole_move(gone: list[bool]) -> None:
    """Each slot once, in order; no two runs could be one."""
    move = SlotMove.closing(np.array(gone), tiled=False)
    runs = list(move.runs())
    pairs = [(s + i, t + i) for s, t, count in runs for i in range(count)]
    assert pairs == list(zip(move.source.tolist(), move.target.tolist(), strict=True))
    assert all(one[0] + one[2] < two[0] for one, two in itertools.pairwise(runs))
    assert set(move.source.tolist()) == set(np.flatnonzero(~np.array(gone))) - set(
        range(gone.index(True))
    )
