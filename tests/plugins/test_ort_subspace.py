"""The CPU kernel equals the reference in subspace mode: ragged prefill, then decode steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import make_text
from tests.plugins.ort_subspace import FOUR_BITS, MIXED, TWO_BITS, make_comparison
from tests.plugins.ragged_text import PREFILL_TOKENS, compare_ragged

STEPS = 64


def run_text(
    library: Path,
    variant: dict[str, Any],
    *,
    dtype: Any = np.float32,
    steps: int = STEPS,
    **options: Any,
) -> None:
    """Runs ragged prefill chunks and decode steps of a batch of two on kernel and reference."""
    comparison = make_comparison(library, variant, dtype=dtype, **options)
    text = make_text(
        comparison.kernel.attributes, PREFILL_TOKENS + steps, batch=2, dtype=dtype, seed=1
    )
    compare_ragged(comparison, text, steps)


@pytest.mark.parametrize("layout", ["row", "tile"])
@pytest.mark.parametrize("segment", [0, 32])
@pytest.mark.parametrize("bits", [MIXED, FOUR_BITS, TWO_BITS], ids=str)
def test_codes(subspace_library: Path, bits: tuple[int, ...], segment: int, layout: str) -> None:
    """Each mix of widths in both layouts, with one frame for all keys and with several segments."""
    variant = {"key_bits": bits, "value_bits": bits, "code_layout": layout}
    steps = STEPS if segment and layout == "tile" else 24
    run_text(subspace_library, variant | {"segment_length": segment}, steps=steps)


BITS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((8, 64), TWO_BITS),
    (MIXED, (8, 8)),
    ((2, 8), (8, 8, 4, 8, 2, 8)),
    ((8, 8, 2, 40), (4, 24)),
    ((4, 40, 2, 24), (8, 24, 4, 40)),
]


@pytest.mark.parametrize("layout", ["row", "tile"])
@pytest.mark.parametrize("bits", BITS, ids=str)
def test_different_codes_for_keys_and_values(
    subspace_library: Path, bits: tuple[tuple[int, ...], ...], layout: str
) -> None:
    """Keys and values differ in the number of components, and segments may need padding."""
    variant = {"key_bits": bits[0], "value_bits": bits[1], "code_layout": layout}
    run_text(subspace_library, variant, steps=12)


# H, Hk, Hc, D, G, bits
SHAPES: list[tuple[int, int, int, int, int, tuple[int, ...]]] = [
    (3, 1, 1, 64, 1, MIXED),
    (8, 1, 1, 80, 3, FOUR_BITS),
    (2, 1, 1, 128, 2, TWO_BITS),
    (3, 3, 3, 80, 2, MIXED),
    (6, 3, 1, 128, 1, (8, 32, 4, 64, 2, 32)),
    (9, 3, 1, 64, 3, FOUR_BITS),
    (4, 4, 4, 128, 3, FOUR_BITS),
    (8, 4, 1, 64, 2, (4, 128, 2, 128)),
    (4, 4, 2, 80, 2, MIXED),
    (4, 4, 1, 80, 1, TWO_BITS),
    (12, 4, 4, 64, 1, (8, 64)),
    (3, 3, 1, 64, 10, MIXED),
    (2, 1, 1, 32, 12, TWO_BITS),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(subspace_library: Path, shape: tuple[Any, ...], dtype: Any) -> None:
    """Heads, code heads from one to all, head sizes and groups of 1 to 3, in models of two types.

    Half of the runs have fp16 encoders and decoders, the other half rows instead of tiles.
    """
    names = ("num_heads", "kv_num_heads", "code_heads", "head_size", "group_size", "key_bits")
    variant = dict(zip(names, shape, strict=True)) | {"value_bits": shape[-1]}
    half = (SHAPES.index(shape) + (dtype is np.float16)) % 2
    variant["code_layout"] = "row" if half else "tile"
    table_dtype = np.float32 if half else np.float16
    run_text(subspace_library, variant, dtype=dtype, table_dtype=table_dtype, steps=16 - 8 * half)


VARIANTS: list[dict[str, Any]] = [
    {"key_head_permutation": (1, 0, 0, 1), "value_head_permutation": (0, 1, 1, 0)},
    {"kv_num_heads": 4, "code_heads": 2, "code_layout": "row", "key_bits": FOUR_BITS,
     "key_head_permutation": (3, 1, 0, 2, 1, 2, 3, 0),
     "value_head_permutation": (0, 2, 1, 3, 3, 2, 1, 0)},
    {"has_bias": 1, "has_sink": 1, "softcap": 5.0, "scale": 0.2},
    {"local_window_size": 40},
    {"rotary_interleaved": 1, "key_bits": FOUR_BITS},
    {"segment_length": 16}, {"segment_length": 1024}, {"segment_length": 48},
    {"sinks": 0}, {"window": 0, "ring_slots": 26}, {"sinks": 20}, {"ring_slots": 16},
    {"sinks": 0, "window": 0, "ring_slots": 1},
    {"magnitude": "upper", "slerp_t": 0.1},
]  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_variants(subspace_library: Path, variant: dict[str, Any]) -> None:
    """Permutations, scores, windows, segments, and attributes that subspace mode ignores."""
    run_text(subspace_library, variant, steps=12)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rotary", [16, 80])
def test_partial_rotary(subspace_library: Path, rotary: int, interleaved: int) -> None:
    """RoPE turns the first 16 components of 80, or all of them, in halves or neighbours."""
    variant = {"head_size": 80, "rotary_interleaved": interleaved}
    run_text(subspace_library, variant, rotary=rotary, steps=12)


def test_other_types(subspace_library: Path) -> None:
    """``exact_*`` may also be fp32, and a model bf16."""
    run_text(subspace_library, {}, exact_dtype=np.float32, steps=12)
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="NumPy needs ml_dtypes for bf16")
    run_text(subspace_library, {}, dtype=ml_dtypes.bfloat16, steps=6)
