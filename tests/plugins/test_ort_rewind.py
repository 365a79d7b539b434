"""Going back on the CPU kernel: each call equals the reference, and the rest equals a fresh run."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import make_attributes, make_text, poisoned_state
from tests.plugins.comparison import Comparison
from tests.plugins.ort_group import OrtGroup
from tests.plugins.walk import CAPACITY, POLICIES, SMALL, walk
from tests.tolerances import ATTENTION

HEADS = {"head_size": 32, "num_heads": 4, "kv_num_heads": 2}
# M: nothing, fewer tokens than disagree, some, and more than there are.
MOST = (0, 1, 3, 6, CAPACITY)


class KernelGroup(Comparison):
    """The kernel, held to the reference at every call."""

    @property
    def state(self) -> dict[str, np.ndarray]:
        return self.kernel.state


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("layout", ["row", "tile"])
@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=12)
@given(data=st.data(), most=st.sampled_from(MOST))
def test_going_back_equals_never_having_gone(
    ort_library: Path, policy: str, layout: str, dtype: Any, data: st.DataObject, most: int
) -> None:
    """Whatever was dropped, up to X tokens, the rest of a text is that of a fresh run."""
    attributes = make_attributes(**SMALL, **HEADS, **POLICIES[policy], code_layout=layout)
    kernel = OrtGroup(ort_library, attributes, poisoned_state(attributes, 1, CAPACITY, most), dtype)

    def make(rows: int) -> KernelGroup:
        group = copy.copy(kernel)  # a session costs more than its calls here
        group.state = poisoned_state(attributes, rows, CAPACITY, most)
        return KernelGroup(group)

    walk(data, attributes, make, ATTENTION[np.dtype(dtype).name], dtype)


@pytest.mark.parametrize("most", MOST)
@pytest.mark.parametrize("policy", POLICIES)
def test_running_a_call_twice_changes_nothing(ort_library: Path, policy: str, most: int) -> None:
    """For S <= X, the second run of a call gives the same bytes of state, and the same outputs."""
    attributes = make_attributes(**SMALL, **HEADS, **POLICIES[policy], code_layout="tile")
    text = make_text(attributes, CAPACITY)
    kernel = OrtGroup(ort_library, attributes, poisoned_state(attributes, 1, CAPACITY, most))
    past = 0
    for new in (2, 4, 6, 13, 1, 6, 1, 3, 6, 1):
        call = text.call([past], [new])
        first = np.stack(kernel.run(call))
        once = {name: array.tobytes() for name, array in kernel.state.items()}
        past += new
        if new > 6:
            continue
        np.testing.assert_array_equal(first, np.stack(kernel.run(call)))
        for name, array in kernel.state.items():
            assert array.tobytes() == once[name], name


def test_places_given_back_lie_in_several_blocks(ort_library: Path) -> None:
    """Tokens that return to the active set are skipped in every block of codes, in parts too."""
    slack, tokens, capacity = 40, 700, 720
    attributes = make_attributes(
        **SMALL | HEADS | {"ring_slots": 2 + slack}, retention="budget", code_layout="tile"
    )
    text, other = (make_text(attributes, tokens, seed=seed) for seed in (5, 6))
    for array in (text.key, text.value):  # the dropped tokens take all places
        array[1, :, 620:] = -array[0, :, 620:]
    for name in ("query", "key", "value"):
        getattr(other, name)[:, :, :626] = getattr(text, name)[:, :, :626]
    comparisons = [
        Comparison(OrtGroup(ort_library, attributes, poisoned_state(attributes, 1, capacity, 20)))
        for _ in range(2)
    ]
    for comparison in comparisons:
        comparison.step(text.call([0], [626]))
    magnitudes = comparisons[0].kernel.state["key_magnitude"][0, 0, :624, 0]
    before = np.signbit(magnitudes)
    for past in range(626, 666):
        comparisons[0].step(text.call([past], [1]))
    assert len(set(np.flatnonzero(before & ~np.signbit(magnitudes)) // 64)) > 4
    for past, new in ((626, 1), (627, 9), (636, 1)):
        rewound, fresh = (np.stack(c.step(other.call([past], [new]))) for c in comparisons)
        np.testing.assert_allclose(rewound, fresh, rtol=0, atol=ATTENTION["float32"] * 4)
