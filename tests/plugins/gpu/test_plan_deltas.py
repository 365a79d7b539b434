"""Deltas of pairs through the C++ plan and the interpreted kernels, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.helpers import Text, make_text
from tests.plugins.gpu.gpu_group import GpuGroup
from tests.plugins.gpu.walk_modes import (
    BACK,
    CHUNK,
    DECODE,
    PREFILL,
    SMALL,
    Step,
    aligned,
    compare,
    empty_state,
    slerp,
    walk_calls,
    walk_text,
)
from tests.plugins.triton.interpreter import BFLOAT16


def run(
    attributes: dict[str, Any],
    tables: Any = (),
    *,
    steps: tuple[Step, ...] = (PREFILL, DECODE),
    dtype: Any = np.float16,
    text: Text | None = None,
    options: dict[str, int] | None = None,
) -> GpuGroup:
    """A walk of two rows, all outputs and all state after every call."""
    state = empty_state(attributes, SMALL, dtype)
    group = GpuGroup(attributes, state, dtype, tables, options)
    comparison, text = compare(group), text or walk_text(attributes, SMALL, dtype)
    for call in walk_calls(attributes, text, steps):
        comparison.step(call)
    comparison.finish()
    assert {"attend_pair", "encode_pair"} <= {key.partition("|")[0] for key in group.keys}
    assert "attend_codes" not in {key.partition("|")[0] for key in group.keys}
    return group


@pytest.mark.parametrize("code_bits", [16, 8, 4])
@pytest.mark.parametrize("bits", [16, 4, 2])
def test_every_width(bits: int, code_bits: int) -> None:
    """Deltas of each width beside directions of each."""
    run(*slerp(delta_bits=bits, slerp_t=0.5, key_bits=code_bits, value_bits=code_bits))


def test_bfloat16_with_bias_sink_and_softcap() -> None:
    """Scores are capped and biased after the deltas joined them."""
    attributes, _ = slerp(
        delta_bits=4, slerp_t=0.5, key_bits=4, value_bits=16, has_bias=1, has_sink=1, softcap=5.0
    )
    run(attributes, dtype=BFLOAT16)


@pytest.mark.parametrize("magnitude", ["upper", "blended"])
def test_permutations_and_retention(magnitude: str) -> None:
    """Heads that share codes in another order; retained tokens' deltas are not read."""
    attributes, _ = slerp(
        delta_bits=2,
        slerp_t=0.5,
        magnitude=magnitude,
        retention="budget",
        key_head_permutation=(0, 1, 1, 0),
        value_head_permutation=(1, 0, 0, 1),
    )
    run(attributes, steps=(PREFILL, DECODE, CHUNK, BACK))


def test_aligned_pairs() -> None:
    """Deltas lie in the code space; chunks of a call give what one launch gives."""
    attributes, tables = aligned(delta_bits=4, slerp_t=0.5, key_bits=8, value_bits=4)
    group = run(attributes, tables, options={"scratch_bytes": 30_000})
    assert group.most_launches > 12, "the calls were not cut"


@pytest.mark.parametrize("code_bits", [16, 4])
def test_vectors_without_an_arc(code_bits: int) -> None:
    """Zero, equal, nearly equal, opposite and nearly opposite layers."""
    attributes, _ = slerp(delta_bits=4, slerp_t=0.5, key_bits=code_bits, value_bits=code_bits)
    text = make_text(attributes, SMALL.capacity, batch=2, dtype=np.float16, noise=0.4)
    for array in (text.key, text.value):
        array[0, :, 4] = 0
        array[1, :, 5] = 0
        array[:, :, 6] = 0
        array[1, :, 7] = array[0, :, 7]
        array[1, :, 8] = 2 * array[0, :, 8]
        array[1, :, 9] = -array[0, :, 9]
        array[1, :, 10] = 0.01 * array[1, :, 20] - array[0, :, 10]
        array[1, :, 11] = 0.01 * array[1, :, 20] + array[0, :, 11]
    state = run(attributes, text=text).state
    ratios = state["key_delta_ratio"][0, :, 4:12, 0]
    assert (ratios[:, :5] == 0).all()
    assert (ratios[:, 5:] > 0).all()
