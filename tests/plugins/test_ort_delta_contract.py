"""What the CPU kernel promises of deltas beyond numbers: odd vectors, in-place state, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicache.plugins.reference.delta import SHORTEST
from tests.helpers import make_attributes, make_text, poisoned_state
from tests.plugins.comparison import Comparison
from tests.plugins.delta_text import delta_attributes, tables_of
from tests.plugins.ort_group import OrtGroup

CAPACITY, TOKENS = 80, 60
BASE: dict[str, Any] = {
    "window": 8,
    "sinks": 4,
    "ring_slots": 20,
    "head_size": 64,
    "num_heads": 4,
    "kv_num_heads": 2,
    "code_layout": "tile",
}
KINDS: list[dict[str, int]] = [{"delta_bits": b} for b in (16, 4, 2)] + [{"delta_rank": 2}]


@pytest.mark.parametrize("bits", [16, 8, 4])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_degenerate_vectors(ort_library: Path, bits: int, kind: dict[str, int]) -> None:
    """Zero, equal, nearly equal, opposite and nearly opposite layers, and ones that saturate."""
    attributes = delta_attributes(**BASE, **kind, key_bits=bits, value_bits=bits)
    text = make_text(attributes, TOKENS, noise=0.1)
    for array in (text.key, text.value):
        array[0, :, 6] = 0
        array[1, :, 7] = 0
        array[:, :, 8] = 0
        array[1, :, 9] = array[0, :, 9]
        array[1, :, 10] = 3 * array[0, :, 10]  # in fp32, whose rounding is no delta
        array[1, :, 11] = -array[0, :, 11]
        array[1, :, 12] = 1e-2 * array[1, :, 20] - array[0, :, 12]
        array[1, :, 13] = 1e-2 * array[1, :, 20] + array[0, :, 13]
        array[:, :, 14] *= 1e4
    state = poisoned_state(attributes, 1, CAPACITY)
    kernel = OrtGroup(ort_library, attributes, state, threads=2, tables=tables_of(attributes))
    comparison = Comparison(kernel, score_growth=1e3)  # of the long vectors
    past = 0
    for new in (30, 5, *[1] * 12):
        comparison.step(text.call([past], [new]))
        past += new
    comparison.finish()
    ratio = kernel.state["key_delta_ratio"][0]
    assert (ratio[:, [6, 7, 8, 9, 10]] == 0).all()
    assert (ratio[:, 13] > SHORTEST).all()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_running_a_call_twice_changes_nothing(ort_library: Path, kind: dict[str, int]) -> None:
    """For S <= X, the second run of a call gives the same bytes of state, and the same outputs."""
    attributes = delta_attributes(**BASE, **kind, retention="budget")
    text, tables = make_text(attributes, TOKENS), tables_of(attributes)
    state = poisoned_state(attributes, 1, CAPACITY, 5)
    kernel = OrtGroup(ort_library, attributes, state, threads=2, tables=tables)
    past = 0
    for new in (40, 3, 1, 10, 1):
        call = text.call([past], [new])
        first = np.stack(kernel.run(call))
        once = {name: array.tobytes() for name, array in kernel.state.items()}
        past += new
        if new > 12:
            continue
        np.testing.assert_array_equal(first, np.stack(kernel.run(call)))
        for name, array in kernel.state.items():
            assert array.tobytes() == once[name], name


def test_states_that_are_not_in_place_are_copied(ort_library: Path) -> None:
    """Deltas written to other memory hold what was there and what is new."""
    attributes = delta_attributes(**BASE, delta_bits=2)
    text = make_text(attributes, TOKENS)
    groups = [
        OrtGroup(ort_library, attributes, poisoned_state(attributes, 1, CAPACITY), in_place=here)
        for here in (True, False)
    ]
    past = 0
    for new in (30, 1, 5):
        outputs = [np.stack(group.run(text.call([past], [new]))) for group in groups]
        np.testing.assert_array_equal(*outputs)
        past += new
    for name, array in groups[0].state.items():
        assert array.tobytes() == groups[1].state[name].tobytes(), name


def test_threads_change_nothing(ort_library: Path) -> None:
    """One thread, two, and more than there are heads write the same bytes."""
    attributes = delta_attributes(**BASE, delta_rank=3)
    text, tables = make_text(attributes, TOKENS), tables_of(attributes)
    results = []
    for threads in (1, 2, 5):
        state = poisoned_state(attributes, 1, CAPACITY)
        kernel = OrtGroup(ort_library, attributes, state, threads=threads, tables=tables)
        kernel.run(text.call([0], [40]))
        results.append([array.tobytes() for array in kernel.state.values()])
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"delta_bits": 8}, "delta_bits is 8, not 0"),
        ({"delta_rank": 65}, "delta_rank is 65, not within 0..head_size 64"),
        ({"delta_bits": 4, "delta_rank": 1}, "one or the other"),
        ({"delta_bits": 4, "group_size": 3}, "not of group_size 3"),
        ({"delta_bits": 4, "slerp_t": 0.6}, "not at 0.6"),
        ({"delta_bits": 2, "head_size": 66}, "do not fill bytes with head_size 66"),
    ],
    ids=str,
)
def test_contradictions_are_named(ort_library: Path, given: dict[str, Any], words: str) -> None:
    """What only a pair that is merged halfway has fails when the session is made."""
    attributes = make_attributes(**BASE | {"mode": "slerp", "slerp_t": 0.5} | given)
    whole = {**attributes, "delta_bits": 0, "delta_rank": 0}
    state = poisoned_state(whole, 1, CAPACITY)
    rank = given.get("delta_rank", 0)
    tables = [*tables_of({**attributes, "delta_rank": min(rank, 64)}), {}]
    with pytest.raises(Exception, match=words):
        OrtGroup(ort_library, attributes, {**state, **_deltas(attributes)}, tables=tables)


def _deltas(attributes: dict[str, Any]) -> dict[str, np.ndarray]:
    """States of deltas of any shape: the attributes are refused before anyone reads them."""
    shape = 1, attributes["kv_num_heads"], CAPACITY, 4
    codes = {f"{kind}_delta": np.zeros(shape, np.int8) for kind in ("key", "value")}
    return codes | {f"{name}_ratio": np.zeros(shape, np.float16) for name in codes}


@pytest.mark.parametrize(
    ("name", "shape"), [("key_delta_basis", (2, 3, 64)), ("value_delta_basis", (1, 2, 64))]
)
def test_wrong_bases_are_refused(ort_library: Path, name: str, shape: tuple[int, ...]) -> None:
    """A basis of another shape fails with its name, not with garbage."""
    attributes = delta_attributes(**BASE, delta_rank=2)
    tables = [{**table} for table in tables_of(attributes)]
    tables[0][name] = np.zeros(shape, np.float32)
    with pytest.raises(Exception, match=name):
        kernel = OrtGroup(
            ort_library, attributes, poisoned_state(attributes, 1, CAPACITY), tables=tables
        )
        kernel.run(make_text(attributes, 8).call([0], [8]))
