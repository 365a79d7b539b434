"""Each mode through the C++ plan and the interpreted kernels, call by call against the reference.

``walk_modes`` says what a walk is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.helpers import Text, make_attributes
from tests.plugins.comparison import Comparison
from tests.plugins.gpu.gpu_group import GpuGroup
from tests.plugins.gpu.walk_modes import (
    BACK,
    CHUNK,
    DECODE,
    MODES,
    PREFILL,
    SMALL,
    Step,
    compare,
    empty_state,
    subspace,
    walk_calls,
    walk_text,
)
from tests.plugins.triton.interpreter import BFLOAT16


def make_walk(
    attributes: dict[str, Any],
    tables: Any = (),
    *,
    dtype: Any = np.float16,
    options: dict[str, int] | None = None,
) -> tuple[Comparison, Text]:
    """Kernels and reference on an empty, poisoned state, and a text for two rows."""
    state = empty_state(attributes, SMALL, dtype)
    group = GpuGroup(attributes, state, dtype, tables, options)
    return compare(group), walk_text(attributes, SMALL, dtype)


def run_walk(comparison: Comparison, text: Text, *steps: Step) -> None:
    """Runs the calls of a walk."""
    for call in walk_calls(comparison.kernel.attributes, text, steps):
        comparison.step(call)
    comparison.finish()


@pytest.mark.parametrize("mode", MODES)
def test_walk(mode: str) -> None:
    """All outputs and all state, after every call."""
    attributes, tables = MODES[mode](SMALL)
    comparison, text = make_walk(attributes, tables)
    run_walk(comparison, text, PREFILL, DECODE, CHUNK, BACK)


def test_bfloat16_with_bias_sink_and_softcap() -> None:
    """A bf16 model meets fp16 codes; scores are capped, biased, and share with a sink."""
    one = {"num_heads": 2, "kv_num_heads": 1, "segment_length": 0}
    attributes, tables = subspace(has_bias=1, has_sink=1, softcap=5.0, **one)
    comparison, text = make_walk(attributes, tables, dtype=BFLOAT16)
    run_walk(comparison, text, PREFILL, DECODE)


def test_exact_mode_of_bfloat16_with_bias() -> None:
    """The cache is bf16 then."""
    attributes = make_attributes(head_size=32, num_heads=4, kv_num_heads=2, has_bias=1, softcap=5.0)
    comparison, text = make_walk(attributes, dtype=BFLOAT16)
    run_walk(comparison, text, PREFILL, DECODE)


def test_heads_that_share_codes_in_another_order() -> None:
    """Permutations differ between keys and values, so that no two heads share both codes."""
    attributes, tables = subspace(
        kv_num_heads=4,
        code_heads=2,
        group_size=2,
        key_head_permutation=(3, 1, 0, 2, 1, 2, 3, 0),
        value_head_permutation=(0, 2, 1, 3, 3, 2, 1, 0),
        key_bits=(4, 32),
        value_bits=(8, 16, 2, 64),
    )
    comparison, text = make_walk(attributes, tables)
    run_walk(comparison, text, ([0, 0], [19, 2]), ([19, 2], [1, 1]))


def test_chunks_give_what_one_launch_gives() -> None:
    """A call whose scratch is bounded attends to its new tokens chunk by chunk."""
    attributes, tables = subspace(code_heads=1)
    comparison, text = make_walk(attributes, tables, options={"scratch_bytes": 30_000})
    run_walk(comparison, text, ([0, 0], [24, 11]), ([24, 11], [6, 4]))
    group: Any = comparison.kernel
    assert group.most_launches > 12, "the calls were not cut"


def test_groups_of_more_layers_than_a_launch_takes() -> None:
    """Nine layers: new keys and values come in two launches."""
    attributes, tables = subspace(
        group_size=9, num_heads=1, kv_num_heads=1, head_size=16, segment_length=0
    )
    comparison, text = make_walk(attributes, tables)
    run_walk(comparison, text, ([0, 0], [9, 3]), ([9, 3], [1, 1]))
