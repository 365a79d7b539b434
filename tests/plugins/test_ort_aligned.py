"""The CPU kernel equals the reference in aligned slerp: ragged prefill, then decode steps."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import make_attributes, make_text, poisoned_state
from tests.plugins.aligned_text import aligned_attributes, make_alignment, turned_text
from tests.plugins.comparison import Comparison
from tests.plugins.ort_group import OrtGroup
from tests.plugins.ragged_text import (
    CAPACITY,
    PREFILL_TOKENS,
    RETAINED,
    SLOTS,
    compare_ragged,
)
from tests.plugins.test_ort_rewind import KernelGroup
from tests.plugins.walk import CAPACITY as WALK_CAPACITY
from tests.plugins.walk import POLICIES, walk
from tests.plugins.walk import SMALL as WALK_SMALL
from tests.tolerances import ATTENTION

BASE = SLOTS | {"segment_length": 32}


def run_text(
    library: Path,
    variant: dict[str, Any],
    *,
    dtype: Any = np.float32,
    exact_dtype: Any = np.float16,
    table_dtype: Any = np.float32,
    rotary: int | None = None,
    steps: int = 24,
) -> None:
    """Runs ragged prefill chunks and decode steps of a batch of two on kernel and reference."""
    attributes = aligned_attributes(**BASE | variant)
    tables = make_alignment(attributes, dtype=table_dtype, rotary=rotary)
    state = poisoned_state(attributes, 2, CAPACITY, RETAINED, exact_dtype)
    comparison = Comparison(OrtGroup(library, attributes, state, dtype, 2, tables=tables))
    text = make_text(attributes, PREFILL_TOKENS + steps, batch=2, dtype=dtype, seed=1)
    text = turned_text(attributes, tables, text)
    compare_ragged(comparison, text, steps)


@pytest.mark.parametrize("layout", ["row", "tile"])
@pytest.mark.parametrize("segment", [0, 32])
@pytest.mark.parametrize("bits", [(16, 16), (8, 8), (4, 4), (16, 4), (4, 8)], ids=str)
def test_codes(ort_library: Path, bits: tuple[int, int], segment: int, layout: str) -> None:
    """Each width of code in both layouts, with one frame for all keys and with several segments."""
    codes = {"key_bits": bits[0], "value_bits": bits[1], "code_layout": layout}
    run_text(ort_library, codes | {"segment_length": segment})


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("bits", [16, 8, 4])
@pytest.mark.parametrize("size", [72, 80, 128])
@pytest.mark.parametrize("heads", [(3, 1), (4, 4)], ids=str)
def test_shapes(
    ort_library: Path, bits: int, size: int, heads: tuple[int, int], dtype: Any
) -> None:
    """Head sizes whose rows need padding or do not; tables of the model's type."""
    variant = {"head_size": size, "num_heads": heads[0], "kv_num_heads": heads[1]}
    variant |= {"key_bits": bits, "value_bits": bits}
    run_text(ort_library, variant, dtype=dtype, table_dtype=dtype, steps=12)


VARIANTS: list[dict[str, Any]] = [
    {"retention": "threshold", "retention_threshold": 0.6},
    {"retention": "threshold", "retention_threshold": 0.4, "retention_scope": "any-head"},
    {"retention": "minmax", "retention_gamma": 0.3},
    {"retention": "budget"},
    {"retention": "budget", "code_layout": "row", "group_size": 3, "value_bits": 4},
    {"retention": "budget", "magnitude": "upper", "key_bits": 16},
    {"magnitude": "blended", "group_size": 3},
    {"group_size": 1, "retention": "threshold"},
    {"slerp_t": 0.5, "group_size": 4},
    {"key_head_permutation": (0, 1, 1, 0), "value_head_permutation": (1, 0, 0, 1),
     "retention": "budget"},
    {"has_bias": 1, "has_sink": 1, "softcap": 5.0, "retention": "budget"},
    {"local_window_size": 40, "retention": "minmax"},
    {"rotary_interleaved": 1}, {"segment_length": 48, "retention": "budget"},
    {"sinks": 0}, {"window": 0, "ring_slots": 26, "retention": "budget"}, {"sinks": 20},
    {"sinks": 0, "window": 0, "ring_slots": 1},
]  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_variants(ort_library: Path, variant: dict[str, Any]) -> None:
    """Every policy, magnitude, permutation, and option of the scores, over several segments."""
    run_text(ort_library, variant)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rotary", [16, 80])
def test_partial_rotary(ort_library: Path, rotary: int, interleaved: int) -> None:
    """RoPE turns the first 16 components of 80, or all of them, in halves or neighbours."""
    variant = {"head_size": 80, "rotary_interleaved": interleaved}
    run_text(ort_library, variant, rotary=rotary, steps=12)


def test_other_types(ort_library: Path) -> None:
    """``exact_*`` may also be fp32, and a model bf16."""
    run_text(ort_library, {"retention": "budget"}, exact_dtype=np.float32, steps=12)
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="NumPy needs ml_dtypes for bf16")
    run_text(ort_library, {"retention": "budget"}, dtype=ml_dtypes.bfloat16, steps=6)


@pytest.mark.slow
def test_long_context(ort_library: Path) -> None:
    """More tokens than one chunk of a split, in several segments, some of them retained."""
    attributes = aligned_attributes(**BASE | {"segment_length": 256, "retention": "budget"})
    tables = make_alignment(attributes)
    state = poisoned_state(attributes, 1, 2048, 64)
    comparison = Comparison(OrtGroup(ort_library, attributes, state, np.float32, 2, tables=tables))
    text = turned_text(attributes, tables, make_text(attributes, 1520, dtype=np.float32))
    past = 0
    for new in (700, 700, 100, 3, 3, 1, 1, 1):
        comparison.step(text.call([past], [new]))
        past += new
    comparison.finish()


@pytest.mark.parametrize("layout", ["row", "tile"])
@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=10)
@given(data=st.data(), most=st.sampled_from((0, 1, 3, 6, WALK_CAPACITY)))
def test_going_back_equals_never_having_gone(
    ort_library: Path, policy: str, layout: str, data: st.DataObject, most: int
) -> None:
    """Whatever was dropped, up to X tokens, the rest of a text is that of a fresh run."""
    shape = {"head_size": 32, "num_heads": 4, "kv_num_heads": 2, "segment_length": 16}
    attributes = aligned_attributes(**WALK_SMALL, **POLICIES[policy], **shape, code_layout=layout)
    tables = make_alignment(attributes)
    state = poisoned_state(attributes, 1, WALK_CAPACITY, most)
    kernel = OrtGroup(ort_library, attributes, state, tables=tables)

    def make(rows: int) -> KernelGroup:
        group = copy.copy(kernel)  # a session costs more than its calls here
        group.state = poisoned_state(attributes, rows, WALK_CAPACITY, most)
        return KernelGroup(group)

    walk(
        data,
        attributes,
        make,
        ATTENTION["float32"],
        change=lambda text: turned_text(attributes, tables, text),
    )


def test_running_a_call_twice_changes_nothing(ort_library: Path) -> None:
    """The second run of a call gives the same bytes of state, and the same outputs."""
    attributes = aligned_attributes(**BASE | {"retention": "budget"})
    tables = make_alignment(attributes)
    text = turned_text(attributes, tables, make_text(attributes, 80))
    state = poisoned_state(attributes, 1, CAPACITY, RETAINED)
    kernel = OrtGroup(ort_library, attributes, state, threads=2, tables=tables)
    past = 0
    for new in (40, 3, 1, 10, 1):
        call = text.call([past], [new])
        first = np.stack(kernel.run(call))
        once = {name: array.tobytes() for name, array in kernel.state.items()}
        past += new
        if new > 10:
            continue
        np.testing.assert_array_equal(first, np.stack(kernel.run(call)))
        for name, array in kernel.state.items():
            assert array.tobytes() == once[name], name


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("key_decoder", (2, 64, 63)),
        ("value_encoder", (2, 64, 64)),
        ("rope_frequencies", (33,)),
        ("key_encoder", (1, 64, 128)),
    ],
)
def test_wrong_tables_are_refused(ort_library: Path, name: str, shape: tuple[int, ...]) -> None:
    """A table of another shape fails with its name, not with garbage."""
    attributes = aligned_attributes(**BASE)
    tables = [{**table} for table in make_alignment(attributes)]
    tables[-1][name] = np.zeros(shape, np.float32)
    state = poisoned_state(attributes, 1, CAPACITY)
    with pytest.raises(Exception, match=name):
        kernel = OrtGroup(ort_library, attributes, state, tables=tables)
        kernel.run(make_text(attributes, 8).call([0], [8]))


def test_exact_mode_has_nothing_to_decode(ort_library: Path) -> None:
    """A decoder where no code is fails when the session is made."""
    attributes = make_attributes(has_decoder=1)
    tables = make_alignment(attributes)
    state = poisoned_state(attributes, 1, CAPACITY, dtype=np.float32)
    with pytest.raises(Exception, match="has_decoder"):
        OrtGroup(ort_library, attributes, state, tables=tables)
