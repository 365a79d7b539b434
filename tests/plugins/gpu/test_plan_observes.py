"""Attention masses through the C++ plan and the interpreted kernels, against the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from minicache.exporter import schemas
from minicache.plugins.reference import run_group
from tests.helpers import Call, Text, make_attributes, make_text, poisoned_state
from tests.plugins import evicting
from tests.plugins.comparison import Comparison
from tests.plugins.evicting_walk import EvictingWalk
from tests.plugins.gpu.gpu_group import GpuGroup
from tests.plugins.gpu.walk_modes import (
    BACK,
    CHUNK,
    DECODE,
    MODES,
    PREFILL,
    SMALL,
    Group,
    Step,
    aligned,
    compare,
    slerp,
    subspace,
    walk_calls,
    walk_text,
)
from tests.plugins.triton.interpreter import BFLOAT16
from tests.tolerances import MASS


def observing(
    group: Group,
    observes: int,
    *,
    dtype: Any = np.float16,
    options: dict[str, int] | None = None,
    tokens: int = SMALL.capacity,
) -> Comparison:
    """Kernels and reference of a group that observes, on an empty, poisoned state of two rows."""
    attributes = {**group[0], "evicts": 1, "observes": observes}
    length = schemas.segment_length(attributes)
    segments = -(-tokens // length) if length else 1
    kind = dtype if attributes["mode"] == "exact" else np.float16
    state = poisoned_state(attributes, 2, tokens, SMALL.retained, kind, segments)
    return compare(GpuGroup(attributes, state, dtype, group[1], options))


def observe(comparison: Comparison, call: Call) -> None:
    """Runs a call; rows without new tokens keep their masses, the others gain one per query."""
    attributes, state = comparison.kernel.attributes, comparison.kernel.state
    before = state["attention_mass"].copy()
    comparison.step(call)
    for row, after in enumerate(comparison.kernel.state["attention_mass"]):
        past, total = int(call.past[row]), int(call.total[row])
        if past == total:
            np.testing.assert_array_equal(after.view(np.uint32), before[row].view(np.uint32))
            continue
        gone = int(state["evicted"][row, -1])
        gained = float(after[: total - gone].sum(dtype=np.float64))
        gained -= float(before[row, : past - gone].sum(dtype=np.float64))
        new, most = total - past, attributes["observes"]
        queries = new if most < 0 else min(most, new)
        if attributes["has_sink"]:
            assert 0 < gained < queries, (row, gained)
        else:
            assert abs(gained - queries) <= MASS * total, (row, gained, queries)


def walk(comparison: Comparison, text: Text, steps: Sequence[tuple[Step, int]]) -> None:
    """Runs calls, each with its own number of observed queries: the state is the same."""
    attributes = comparison.kernel.attributes
    calls = walk_calls(attributes, text, [step for step, _ in steps])
    for call, (_, observes) in zip(calls, steps, strict=True):
        attributes["observes"] = observes
        observe(comparison, call)
    comparison.finish()


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "sliding"])
def test_walk(mode: str) -> None:
    """Queries of a part of a prompt, of decode steps, more than a row has; rows without any."""
    comparison = observing(MODES[mode](SMALL), 8)
    text = walk_text(comparison.kernel.attributes, SMALL)
    walk(comparison, text, [(PREFILL, 8), (DECODE, -1), (CHUNK, 3), (BACK, 2)])


FRAMED = {**evicting.CODED, "segment_length": evicting.SEGMENT}
PAIR = {"delta_bits": 4, "slerp_t": 0.5}
THRESHOLD = {"retention": "threshold", "retention_threshold": 0.7}
EVICTING: dict[str, Callable[[], Group]] = {
    "exact": lambda: (make_attributes(**SMALL.heads), ()),
    "deltas": lambda: slerp(**evicting.CODED, **PAIR, **THRESHOLD),
    "budget": lambda: slerp(**evicting.CODED, retention="budget"),
    "aligned deltas": lambda: aligned(**FRAMED, **PAIR, **THRESHOLD),
    "subspace": lambda: subspace(**FRAMED, group_size=2),
    "joint heads": lambda: subspace(**FRAMED, group_size=2, code_heads=1),
}


@pytest.mark.parametrize("mode", EVICTING)
def test_rows_that_evict(mode: str) -> None:
    """Several tiles of slots; blocks of all segments go between the calls."""
    comparison = observing(EVICTING[mode](), -1, tokens=evicting.CAPACITY)
    kernel: Any = comparison.kernel
    text = make_text(kernel.attributes, evicting.TOKENS, batch=2, dtype=np.float16, noise=0.4)
    observes = iter([-1, -1, 3, 7])

    def step(call: Call) -> None:
        kernel.attributes["observes"] = next(observes)
        if call.past.any():
            observe(comparison, call)
            return
        # A prompt evicts nothing: the reference is faster.
        given = kernel.attributes, kernel.state
        for name, array in run_group(*given, *call.arguments, tables=kernel.tables)[1].items():
            kernel.state[name][...] = array

    EvictingWalk(kernel.attributes, text, "some", 1).run(kernel, step)
    assert (kernel.state["evicted"][:, -1] > 0).all()
    comparison.finish()


@pytest.mark.parametrize("observes", [-1, 5, 3])
def test_chunks_add_up(observes: int) -> None:
    """The observed queries of a call lie in several launches, or in the last alone."""
    group = subspace(code_heads=1)
    comparison = observing(group, observes, options={"scratch_bytes": 30_000})
    text = walk_text(comparison.kernel.attributes, SMALL)
    walk(comparison, text, [(([0, 0], [24, 11]), observes), (([24, 11], [6, 4]), observes)])
    kernel: Any = comparison.kernel
    assert kernel.most_launches > 20, "the calls were not cut"


@pytest.mark.parametrize("mode", ["exact", "deltas", "subspace"])
def test_sinks_and_softcap_of_bfloat16(mode: str) -> None:
    """Scores are capped, and share with a sink, whose part no token gets."""
    attributes, tables = MODES[mode](SMALL)
    group = {**attributes, "has_sink": 1, "softcap": 5.0}, tables
    comparison = observing(group, -1, dtype=BFLOAT16)
    text = walk_text(comparison.kernel.attributes, SMALL, BFLOAT16)
    walk(comparison, text, [(PREFILL, 12), (DECODE, -1)])


def test_codes_of_more_columns_than_a_block() -> None:
    """Components of 2 and 4 bits are met in several blocks, the last of which is not full."""
    wide = {"key_bits": (8, 16, 4, 288, 2, 576), "code_heads": 1, "group_size": 2}
    comparison = observing(subspace(**wide), -1)
    text = walk_text(comparison.kernel.attributes, SMALL)
    walk(comparison, text, [(([0, 0], [26, 9]), 2), (DECODE, -1)])


def test_heads_that_share_codes_in_another_order() -> None:
    """A head's queries meet the codes of its slot, each layer's magnitudes its own."""
    attributes, tables = slerp(
        key_head_permutation=(0, 1, 1, 0), value_head_permutation=(1, 0, 0, 1), magnitude="own"
    )
    comparison = observing((attributes, tables), -1)
    text = walk_text(comparison.kernel.attributes, SMALL)
    text.query[:, :, :, 1:] *= np.float16(0.1)  # so that heads attend to other tokens
    walk(comparison, text, [(PREFILL, 6), (DECODE, -1)])
