"""The CPU kernel in ONNX Runtime equals the reference: prefill in chunks, then 64 decode steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import make_attributes, make_text, poisoned_state
from tests.plugins.comparison import Comparison
from tests.plugins.ort_group import OrtGroup
from tests.plugins.ragged_text import (
    CAPACITY,
    PREFILL_TOKENS,
    RETAINED,
    SLOTS,
    compare_ragged,
)

STEPS = 64
SLERP = SLOTS | {"mode": "slerp"}


def run_text(
    library: Path,
    given: dict[str, Any],
    *,
    dtype: Any = np.float32,
    exact_dtype: Any = None,
    threads: int = 2,
    capacity: int = CAPACITY,
    steps: int = STEPS,
    noise: float = 0.5,
) -> None:
    """Runs ragged prefill chunks and decode steps of a batch of two on kernel and reference."""
    attributes = make_attributes(**given)
    if exact_dtype is None:
        exact_dtype = dtype if attributes["mode"] == "exact" else np.float16
    state = poisoned_state(attributes, 2, capacity, RETAINED, exact_dtype)
    comparison = Comparison(OrtGroup(library, attributes, state, dtype, threads))
    tokens = PREFILL_TOKENS + steps
    text = make_text(attributes, tokens, batch=2, dtype=dtype, noise=noise, seed=1)
    compare_ragged(comparison, text, steps, capacity)


EXACT: list[dict[str, Any]] = [
    {"num_heads": 3, "kv_num_heads": 1, "head_size": 64},
    {"num_heads": 6, "kv_num_heads": 2, "head_size": 80, "scale": 0.05},
    {"num_heads": 4, "kv_num_heads": 4, "head_size": 128},
    {"head_size": 64, "has_bias": 1, "has_sink": 1, "softcap": 5.0},
    {"head_size": 64, "local_window_size": 12, "ring_slots": 20},
    {"head_size": 96, "num_heads": 8, "kv_num_heads": 2, "local_window_size": 7, "ring_slots": 7,
     "has_sink": 1},
]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("given", EXACT, ids=str)
def test_exact_mode(ort_library: Path, given: dict[str, Any], dtype: Any) -> None:
    """Exact mode, with every option of the scores, heads 1/3/4 to a group and odd head sizes."""
    run_text(ort_library, given, dtype=dtype)


@pytest.mark.parametrize("layout", ["row", "tile"])
@pytest.mark.parametrize("key_bits", [16, 8, 4])
@pytest.mark.parametrize("value_bits", [16, 8, 4])
def test_slerp_codes(ort_library: Path, layout: str, key_bits: int, value_bits: int) -> None:
    """Each width of code for keys and values, in both layouts."""
    bits = {"key_bits": key_bits, "value_bits": value_bits, "code_layout": layout}
    run_text(ort_library, SLERP | bits, steps=STEPS if key_bits == value_bits else 10)


@pytest.mark.parametrize("bits", [16, 8, 4])
@pytest.mark.parametrize("size", [80, 128])
@pytest.mark.parametrize("heads", [(3, 1), (4, 4)], ids=str)
def test_slerp_shapes(ort_library: Path, bits: int, size: int, heads: tuple[int, int]) -> None:
    """Head sizes whose codes need padding or do not, and other numbers of heads."""
    shape = {"head_size": size, "num_heads": heads[0], "kv_num_heads": heads[1]}
    run_text(ort_library, SLERP | shape | {"key_bits": bits, "value_bits": bits}, steps=16)


VARIANTS: list[dict[str, Any]] = [
    {"retention": "threshold", "retention_threshold": 0.6},
    {"retention": "threshold", "retention_threshold": 0.4, "retention_scope": "any-head"},
    {"retention": "minmax", "retention_gamma": 0.3},
    {"retention": "budget"},
    {"retention": "budget", "code_layout": "row", "group_size": 3, "value_bits": 4},
    {"retention": "budget", "magnitude": "upper", "key_bits": 16},
    {"magnitude": "upper"},
    {"magnitude": "blended", "group_size": 3},
    {"group_size": 3, "key_bits": 4, "code_layout": "row"},
    {"group_size": 1},
    {"group_size": 1, "retention": "threshold"},
    {"slerp_t": 0.5, "group_size": 4},
    {"key_head_permutation": (0, 1, 1, 0), "value_head_permutation": (1, 0, 0, 1),
     "retention": "budget"},
    {"key_head_permutation": (0, 1, 1, 0, 1, 0), "group_size": 3, "magnitude": "blended"},
    {"has_bias": 1, "has_sink": 1, "softcap": 5.0, "retention": "budget"},
    {"local_window_size": 40},
    {"sinks": 0}, {"window": 0, "ring_slots": 26}, {"sinks": 20}, {"ring_slots": 16},
    {"sinks": 0, "window": 0, "ring_slots": 1},
]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_slerp_variants(ort_library: Path, variant: dict[str, Any], dtype: Any) -> None:
    """Retention, magnitudes, groups of 1 to 4, permutations, scores, window and ring sizes."""
    run_text(ort_library, SLERP | variant, dtype=dtype, steps=24 if dtype is np.float32 else 8)


@pytest.mark.parametrize("variant", [{}, {"retention": "threshold"}], ids=str)
def test_exact_slots_of_the_models_type(ort_library: Path, variant: dict[str, Any]) -> None:
    """``exact_*`` and ``retained_*`` may also be fp32."""
    run_text(ort_library, SLERP | variant, exact_dtype=np.float32, steps=24)


def test_bfloat16(ort_library: Path) -> None:
    """A bf16 model runs in exact and in slerp mode."""
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="NumPy needs ml_dtypes for bf16")
    for given in ({"head_size": 64}, SLERP | {"retention": "budget"}):
        run_text(ort_library, given, dtype=ml_dtypes.bfloat16, steps=8)


@pytest.mark.slow
@pytest.mark.parametrize("given", [{"head_size": 64}, SLERP | {"retention": "budget"}], ids=str)
def test_long_context(ort_library: Path, given: dict[str, Any]) -> None:
    """More tokens than one chunk of a split: 1,500 in the cache, then chunks of 3 and of 1."""
    attributes = make_attributes(**given)
    dtype = np.float32 if attributes["mode"] == "exact" else np.float16
    state = poisoned_state(attributes, 1, 2048, 64, dtype)
    comparison = Comparison(OrtGroup(ort_library, attributes, state, np.float32, 2))
    text = make_text(attributes, 1520, dtype=np.float32)
    past = 0
    for new in (700, 700, 100, 3, 3, 1, 1, 1):
        comparison.step(text.call([past], [new]))
        past += new
    comparison.finish()


@pytest.mark.parametrize("given", [{"head_size": 64}, SLERP], ids=str)
def test_going_back_and_running_twice(ort_library: Path, given: dict[str, Any]) -> None:
    """Rewinding, re-running and going on in another way equals the reference at each call."""
    for retention in (
        ("none",) if "mode" not in given else ("none", "threshold", "minmax", "budget")
    ):
        attributes = make_attributes(**given, retention=retention, retention_threshold=0.6)
        dtype = np.float32 if attributes["mode"] == "exact" else np.float16
        state = poisoned_state(attributes, 1, 64, 5, dtype)
        comparison = Comparison(OrtGroup(ort_library, attributes, state, np.float32, 2))
        text, other = (make_text(attributes, 64, seed=seed) for seed in (3, 4))
        for past, new in ((0, 40), (40, 1), (40, 1), (41, 6), (41, 6), (37, 2), (39, 5), (38, 1)):
            comparison.step((other if past < 40 else text).call([past], [new]))
        comparison.finish()
