"""Deltas of a pair on the CPU kernel: it equals the reference at every call."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import make_text, poisoned_state
from tests.plugins.comparison import Comparison
from tests.plugins.delta_text import delta_attributes, tables_of
from tests.plugins.ort_group import OrtGroup
from tests.plugins.ragged_text import (
    CAPACITY,
    PREFILL_TOKENS,
    RETAINED,
    SLOTS,
    compare_ragged,
)
from tests.plugins.walk import CAPACITY as WALK_CAPACITY
from tests.plugins.walk import POLICIES, walk
from tests.plugins.walk import SMALL as WALK_SMALL
from tests.tolerances import ATTENTION

ALIGNED = {"has_decoder": 1, "segment_length": 32}
KINDS: list[dict[str, int]] = [{"delta_bits": bits} for bits in (16, 4, 2)]
KINDS += [{"delta_rank": rank} for rank in (1, 3, 16, 64)]


def run_text(
    library: Path,
    variant: dict[str, Any],
    *,
    dtype: Any = np.float32,
    table_dtype: Any = np.float32,
    exact_dtype: Any = np.float16,
    maths: str = "fp32",
    steps: int = 12,
) -> None:
    """Runs ragged prefill chunks and decode steps of a batch of two on kernel and reference."""
    attributes = delta_attributes(**SLOTS | variant)
    state = poisoned_state(attributes, 2, CAPACITY, RETAINED, exact_dtype)
    tables = tables_of(attributes, table_dtype)
    kernel = OrtGroup(library, attributes, state, dtype, 2, tables=tables, maths=maths)
    comparison = Comparison(kernel)
    text = make_text(attributes, PREFILL_TOKENS + steps, batch=2, dtype=dtype, seed=1)
    if maths != "fp32":  # scores as large as a trained model's: see INTEGER_MATHS
        text = dataclasses.replace(text, query=(text.query * 0.2).astype(dtype))
    compare_ragged(comparison, text, steps)


@pytest.mark.parametrize("layout", ["row", "tile"])
@pytest.mark.parametrize("bits", [(16, 16), (8, 4), (4, 8)], ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_codes(ort_library: Path, kind: dict[str, int], bits: tuple[int, int], layout: str) -> None:
    """Each kind of delta beside each width of code, in both layouts."""
    codes = {"key_bits": bits[0], "value_bits": bits[1], "code_layout": layout}
    run_text(ort_library, codes | kind)


@pytest.mark.parametrize("maths", ["int16", "int8"])
@pytest.mark.parametrize("size", [64, 80, 128])
@pytest.mark.parametrize("bits", [(8, 8), (4, 4), (16, 4)], ids=str)
@pytest.mark.parametrize("kind", KINDS[1:5], ids=str)
def test_integers(
    ort_library: Path, kind: dict[str, int], bits: tuple[int, int], size: int, maths: str
) -> None:
    """Integer products with directions and deltas stay within their bounds."""
    codes = {"key_bits": bits[0], "value_bits": bits[1], "head_size": size}
    run_text(ort_library, codes | kind, maths=maths)


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("size", [24, 72, 80, 128])
def test_shapes(ort_library: Path, kind: dict[str, int], size: int, dtype: Any) -> None:
    """Head sizes whose rows need padding or do not; tables of the model's type."""
    rank = {"delta_rank": min(kind["delta_rank"], size)} if "delta_rank" in kind else {}
    variant = {"head_size": size, "num_heads": 3, "kv_num_heads": 1, "key_bits": 4}
    run_text(ort_library, variant | kind | rank, dtype=dtype, table_dtype=dtype, steps=6)


VARIANTS: list[dict[str, Any]] = [
    {"retention": "threshold", "retention_threshold": 0.6},
    {"retention": "minmax", "retention_gamma": 0.3, "code_layout": "row"},
    {"retention": "budget", "magnitude": "upper", "key_bits": 16},
    {"magnitude": "blended"},
    {"key_head_permutation": (0, 1, 1, 0), "value_head_permutation": (1, 0, 0, 1),
     "retention": "budget"},
    {"has_bias": 1, "has_sink": 1, "softcap": 5.0, "retention": "budget"},
    {"local_window_size": 40}, {"num_heads": 2}, {"num_heads": 12}, {"num_heads": 18},
    {"sinks": 0}, {"window": 0}, {"sinks": 20}, {"sinks": 0, "window": 0, "ring_slots": 1},
    {**ALIGNED, "key_head_permutation": (0, 1, 1, 0), "retention": "budget"},
    {**ALIGNED, "rotary_interleaved": 1, "code_layout": "row", "value_bits": 4},
    {"has_decoder": 1, "magnitude": "blended", "retention": "minmax"},
]  # fmt: skip


@pytest.mark.parametrize("kind", [{"delta_bits": 4}, {"delta_bits": 2}, {"delta_rank": 2}], ids=str)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_variants(ort_library: Path, variant: dict[str, Any], kind: dict[str, int]) -> None:
    """Retention, magnitudes, permutations, scores, rings, rows of queries, and alignment."""
    run_text(ort_library, variant | kind, steps=16)
    run_text(ort_library, variant | kind, maths="int16", steps=6)


def test_other_types(ort_library: Path) -> None:
    """``exact_*`` may also be fp32, and a model bf16."""
    run_text(ort_library, {"retention": "budget"}, exact_dtype=np.float32)
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="NumPy needs ml_dtypes for bf16")
    run_text(ort_library, {"retention": "budget"}, dtype=ml_dtypes.bfloat16, steps=6)


LENGTHS = st.lists(st.integers(0, 90), min_size=2, max_size=2)
ANY = st.fixed_dictionaries(
    {
        "head_size": st.sampled_from([16, 24, 40, 64, 80]),
        "num_heads": st.sampled_from([2, 6, 10, 14]),
        "kv_num_heads": st.sampled_from([1, 2]),
        "key_bits": st.sampled_from([16, 8, 4]),
        "value_bits": st.sampled_from([16, 8, 4]),
        "code_layout": st.sampled_from(["tile", "row"]),
        "retention": st.sampled_from(["none", "threshold"]),
        "sinks": st.integers(0, 5),
        "window": st.integers(0, 40),
        "softcap": st.sampled_from([0.0, 5.0]),
        "has_bias": st.integers(0, 1),
        "has_decoder": st.integers(0, 1),
    }
)


@settings(max_examples=40, deadline=None)
@given(
    shape=ANY,
    kind=st.sampled_from([*KINDS[:5], {"delta_rank": 16}]),
    calls=st.lists(LENGTHS, min_size=1, max_size=3),
    dtype=st.sampled_from([np.float32, np.float16]),
)
def test_any_lengths(
    ort_library: Path, shape: dict[str, Any], kind: dict[str, int], calls: list[list[int]],
    dtype: Any,
) -> None:  # fmt: skip
    """Prefill and decode whose borders fall everywhere, from a cache whose memory is poisoned."""
    ring = {"ring_slots": shape["window"] + 26, "retention_threshold": 0.6}
    attributes = delta_attributes(**shape, **kind, **ring)
    tables, tokens = tables_of(attributes), int(np.sum(calls, axis=0).max())
    state = poisoned_state(attributes, 2, 320, 9)
    comparison = Comparison(OrtGroup(ort_library, attributes, state, dtype, 1, tables=tables))
    text = make_text(attributes, max(tokens, 1), batch=2, dtype=dtype, seed=tokens)
    past = np.zeros(2, int)
    for new in [new for new in calls if max(new)]:
        comparison.step(text.call(list(past), new, capacity=320))
        past += new
    comparison.finish()


class KernelGroup(Comparison):
    """The kernel, held to the reference at every call."""

    @property
    def state(self) -> dict[str, np.ndarray]:
        return self.kernel.state


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=10)
@given(data=st.data(), most=st.sampled_from((0, 3, WALK_CAPACITY)))
def test_going_back_equals_never_having_gone(
    ort_library: Path, policy: str, data: st.DataObject, most: int
) -> None:
    """Whatever was dropped, up to X tokens, the rest of a text is that of a fresh run."""
    shape = {"head_size": 32, "num_heads": 4, "kv_num_heads": 2, "code_layout": "tile"}
    attributes = delta_attributes(**WALK_SMALL, **POLICIES[policy], **shape)
    state = poisoned_state(attributes, 1, WALK_CAPACITY, most)
    kernel = OrtGroup(ort_library, attributes, state)

    def make(rows: int) -> KernelGroup:
        group = copy.copy(kernel)  # a session costs more than its calls here
        group.state = poisoned_state(attributes, rows, WALK_CAPACITY, most)
        return KernelGroup(group)

    walk(data, attributes, make, ATTENTION["float32"])
