"""Integer products with codes stay within their bounds of the reference."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import Text, make_attributes, make_text, poisoned_state
from tests.plugins.comparison import Comparison
from tests.plugins.ort_group import OrtGroup
from tests.plugins.ort_subspace import BASE, FOUR_BITS, MIXED, TWO_BITS, make_comparison
from tests.plugins.ragged_text import (
    CAPACITY,
    PREFILL_TOKENS,
    RETAINED,
    SLOTS,
    compare_ragged,
)
from tests.plugins.subspace_text import make_tables, subspace_attributes

MATHS = ("int16", "int8")
SLERP = SLOTS | {"mode": "slerp"}


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable would override the option that these tests are about."""
    monkeypatch.delenv("MINICACHE_CPU_MATH", raising=False)


def calm_text(attributes: dict[str, Any], tokens: int, batch: int = 2, seed: int = 1) -> Text:
    """Text whose scores are as large as a trained model's: see ``INTEGER_MATHS``."""
    text = make_text(attributes, tokens, batch=batch, seed=seed)
    return dataclasses.replace(text, query=(text.query * 0.2).astype(np.float32))


def run_text(comparison: Comparison, steps: int = 10) -> None:
    """Runs ragged prefill chunks and decode steps of a batch of two on kernel and reference."""
    text = calm_text(comparison.kernel.attributes, PREFILL_TOKENS + steps)
    compare_ragged(comparison, text, steps)


def run_slerp(library: Path, maths: str, variant: dict[str, Any], steps: int = 10) -> None:
    """As above for the codes of a merged pair."""
    attributes = make_attributes(**SLERP | variant)
    state = poisoned_state(attributes, 2, CAPACITY, RETAINED)
    run_text(Comparison(OrtGroup(library, attributes, state, threads=2, maths=maths)), steps)


@pytest.mark.parametrize("maths", MATHS)
@pytest.mark.parametrize("size", [64, 80, 128])
@pytest.mark.parametrize("bits", [(8, 8), (4, 4), (8, 4), (16, 8), (4, 16)], ids=str)
def test_slerp_codes(ort_library: Path, bits: tuple[int, int], size: int, maths: str) -> None:
    """Each width for keys and values; 16 bits stay fp32 beside integers."""
    variant = {"key_bits": bits[0], "value_bits": bits[1], "head_size": size}
    run_slerp(ort_library, maths, variant)


SLERP_VARIANTS: list[dict[str, Any]] = [
    {"retention": "threshold", "retention_threshold": 0.6},
    {"retention": "budget", "key_bits": 4},
    {"retention": "minmax", "retention_gamma": 0.3, "group_size": 3, "value_bits": 4},
    {"has_bias": 1, "has_sink": 1, "softcap": 5.0, "retention": "budget"},
    {"local_window_size": 40, "key_bits": 4, "value_bits": 4},
    {"magnitude": "upper"}, {"num_heads": 3, "kv_num_heads": 1}, {"num_heads": 2},
    {"num_heads": 12}, {"num_heads": 18, "kv_num_heads": 2},
    {"sinks": 0}, {"window": 0}, {"sinks": 20}, {"sinks": 0, "window": 0, "ring_slots": 1},
]  # fmt: skip


@pytest.mark.parametrize("maths", MATHS)
@pytest.mark.parametrize("variant", SLERP_VARIANTS, ids=str)
def test_slerp_variants(ort_library: Path, variant: dict[str, Any], maths: str) -> None:
    """Retained tokens, options of the scores, one to nine rows of queries, rings of every size."""
    run_slerp(ort_library, maths, variant, steps=24)


BITS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    (MIXED, MIXED),
    (FOUR_BITS, TWO_BITS),
    ((8, 64), (4, 40, 2, 24)),
    ((2, 8), (8, 8, 4, 8, 2, 8)),
    ((8, 8, 2, 40), (4, 24)),
    ((8, 256), (8, 256)),  # sums that would overflow at the full range of words
    ((2, 512), (4, 256)),
]


@pytest.mark.parametrize("maths", MATHS)
@pytest.mark.parametrize("segment", [0, 32])
@pytest.mark.parametrize("bits", BITS, ids=str)
def test_subspace_codes(
    subspace_library: Path, bits: tuple[tuple[int, ...], ...], segment: int, maths: str
) -> None:
    """Mixed widths, partly filled vectors, one frame for all keys and several segments."""
    variant = {"key_bits": bits[0], "value_bits": bits[1], "segment_length": segment}
    run_text(make_comparison(subspace_library, variant, maths=maths))


SHAPES: list[dict[str, Any]] = [
    {"num_heads": 3, "kv_num_heads": 1, "group_size": 1},
    {"num_heads": 8, "kv_num_heads": 1, "head_size": 80, "group_size": 3},
    {"num_heads": 2, "kv_num_heads": 1, "head_size": 128},
    {"num_heads": 6, "kv_num_heads": 3, "code_heads": 1, "group_size": 1},
    {"num_heads": 4, "kv_num_heads": 4, "code_heads": 2, "group_size": 2},
    {"num_heads": 3, "kv_num_heads": 3, "code_heads": 1, "group_size": 10},
    {"has_bias": 1, "has_sink": 1, "softcap": 5.0},
    {"local_window_size": 40},
    {"sinks": 0}, {"window": 0}, {"sinks": 20}, {"segment_length": 48},
    {"code_layout": "row"},
]  # fmt: skip


@pytest.mark.parametrize("maths", MATHS)
@pytest.mark.parametrize("variant", SHAPES, ids=str)
def test_subspace_shapes(subspace_library: Path, variant: dict[str, Any], maths: str) -> None:
    """Heads coded apart and jointly, groups of 1 to 10, options of the scores, rings."""
    run_text(make_comparison(subspace_library, variant, maths=maths))


@pytest.mark.parametrize("maths", MATHS)
@settings(max_examples=10)
@given(data=st.data())
def test_any_lengths(subspace_library: Path, maths: str, data: st.DataObject) -> None:
    """Codes that begin and end anywhere in a block, and a few new tokens at a time."""
    past = data.draw(st.lists(st.integers(0, 120), min_size=2, max_size=2), "past")
    comparison = make_comparison(subspace_library, {}, maths=maths)
    text = calm_text(comparison.kernel.attributes, 128)
    comparison.step(text.call([0, 0], past, slots=max(1, *past), capacity=CAPACITY))
    for _ in range(3):
        new = data.draw(st.lists(st.integers(0, 2), min_size=2, max_size=2), "new")
        comparison.step(text.call(past, new, slots=2, capacity=CAPACITY))
        past = [p + n for p, n in zip(past, new, strict=True)]


@pytest.mark.parametrize("maths", MATHS)
def test_threads_change_nothing(subspace_library: Path, maths: str) -> None:
    """One thread and two give the same bytes, over more tokens than one part of a split."""
    attributes = subspace_attributes(**BASE | {"segment_length": 256})
    tables = make_tables(attributes)
    state = poisoned_state(attributes, 1, 1024)
    text = calm_text(attributes, 900, batch=1)
    groups = [
        OrtGroup(subspace_library, attributes, copy.deepcopy(state), threads=threads,
                 tables=tables, maths=maths)
        for threads in (1, 2)
    ]  # fmt: skip
    past = 0
    for new in (800, 1, 2, 1):
        call = text.call([past], [new])
        one, two = (np.stack(group.run(call)) for group in groups)
        np.testing.assert_array_equal(one, two)
        past += new


def test_a_wrong_name_is_told(ort_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The option's and the variable's wrong values name where they stand and what is known."""
    attributes = make_attributes(**SLERP)
    state = poisoned_state(attributes, 1, CAPACITY)
    with pytest.raises(Exception, match=r"option 'minicache.cpu_math' is 'int9', not one of fp32"):
        OrtGroup(ort_library, attributes, state, maths="int9")
    monkeypatch.setenv("MINICACHE_CPU_MATH", "fast")
    with pytest.raises(Exception, match="variable MINICACHE_CPU_MATH is 'fast', not one of fp32"):
        OrtGroup(ort_library, attributes, state)


def test_the_variable_overrides_the_option(
    ort_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that asks for fp32 computes in int8 where the environment says so."""
    attributes = make_attributes(**SLERP)
    state = poisoned_state(attributes, 1, CAPACITY)
    text = calm_text(attributes, 60, batch=1)

    def run(maths: str) -> np.ndarray:
        group = OrtGroup(ort_library, attributes, state, maths=maths)
        group.run(text.call([0], [50]))
        return np.stack(group.run(text.call([50], [1])))

    expected = run("int8")
    monkeypatch.setenv("MINICACHE_CPU_MATH", "int8")
    np.testing.assert_array_equal(run("fp32"), expected)


@pytest.mark.parametrize(("bits", "expected"), [(MIXED, "int16"), ((2, 8), "fp32")], ids=str)
def test_the_default_follows_a_rule(
    subspace_library: Path, bits: tuple[int, ...], expected: str
) -> None:
    """Without an option codes of many components take int16, and small ones fp32."""
    attributes = subspace_attributes(**BASE | {"key_bits": bits, "value_bits": bits})
    tables = make_tables(attributes)
    state = poisoned_state(attributes, 1, CAPACITY)
    text = calm_text(attributes, 60, batch=1)
    outputs = []
    for maths in ("", expected):
        group = OrtGroup(subspace_library, attributes, state, tables=tables, maths=maths)
        group.run(text.call([0], [50]))
        outputs.append(np.stack(group.run(text.call([50], [1]))))
    np.testing.assert_array_equal(*outputs)
