"""The CPU kernel on unusual values: zero, equal, opposite and huge vectors, hidden tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import Text, make_attributes, make_text, poisoned_state
from tests.plugins.comparison import Comparison
from tests.plugins.ort_group import OrtGroup

CAPACITY, TOKENS = 64, 60
SLERP = {
    "mode": "slerp",
    "window": 8,
    "sinks": 4,
    "ring_slots": 16,
    "head_size": 64,
    "num_heads": 4,
    "kv_num_heads": 2,
    "code_layout": "tile",
}


def run(
    library: Path,
    attributes: dict[str, Any],
    text: Text,
    threads: int = 2,
    batch: int = 1,
    score_growth: float = 1.0,
) -> Comparison:
    """Compares prefill in chunks of 30 and 5, then single tokens, on rows of equal length."""
    dtype = np.float32 if attributes["mode"] == "exact" else np.float16
    state = poisoned_state(attributes, batch, CAPACITY, 30, dtype)
    kernel = OrtGroup(library, attributes, state, text.query.dtype, threads)
    comparison = Comparison(kernel, score_growth)
    past = 0
    for new in (30, 5, *[1] * 20):
        comparison.step(text.call([past] * batch, [new] * batch, capacity=CAPACITY))
        past += new
    comparison.finish()
    return comparison


@pytest.mark.parametrize("bits", [16, 8, 4])
@pytest.mark.parametrize("magnitude", ["own", "upper", "blended"])
def test_degenerate_vectors(ort_library: Path, bits: int, magnitude: str) -> None:
    """Zero, equal, doubled and opposite layers give the reference's codes, signs and retention."""
    attributes = make_attributes(
        **SLERP,
        key_bits=bits,
        value_bits=bits,
        magnitude=magnitude,
        retention="threshold",
        retention_threshold=0.25,
    )
    text = make_text(attributes, TOKENS, noise=0.1)
    for array in (text.key, text.value):
        array[0, :, 6] = 0
        array[1, :, 7] = 0
        array[:, :, 8] = 0
        array[1, :, 9] = array[0, :, 9]
        array[1, :, 10] = 2 * array[0, :, 10]
        array[1, :, 11] = -array[0, :, 11]
        # Position 36 is encoded from fp16 slots: only an exact opposite is still one there.
        array[0, :, 36] = array[0, :, 36].astype(np.float16)
        array[1, :, 36] = -2 * array[0, :, 36]
    text.key[0, :, 12] = 0  # cosine 1 for the key, -1 for the value: retained, with a zero length
    text.value[1, :, 12] = -text.value[0, :, 12]
    state = run(ort_library, attributes, text).kernel.state
    assert {11, 12, 36} <= set(state["retained_position"][0])
    if magnitude == "own":
        zero = state["key_magnitude"][0, :, 12, 0]
        assert (zero == 0).all()
        assert np.signbit(zero).all()


def test_magnitudes_saturate(ort_library: Path) -> None:
    """Vectors longer than fp16 can say store 65504."""
    attributes = make_attributes(**SLERP, key_bits=16, value_bits=16)
    text = make_text(attributes, TOKENS)
    text.value[:] = 20000 * np.sign(text.value)
    state = run(ort_library, attributes, text).kernel.state
    assert (state["value_magnitude"][0, :, 4:40] == 65504).all()


@pytest.mark.parametrize("given", [{"head_size": 64}, SLERP], ids=["exact", "slerp"])
def test_large_scores(ort_library: Path, given: dict[str, Any]) -> None:
    """Scores in the hundreds, where exp would overflow without its maximum taken out."""
    growth = 32.0
    attributes = make_attributes(**given, scale=growth / np.sqrt(64))
    run(ort_library, attributes, make_text(attributes, TOKENS), score_growth=growth)


@pytest.mark.parametrize("given", [{"head_size": 64}, SLERP], ids=["exact", "slerp"])
@pytest.mark.parametrize("sink", [0, 1])
def test_hidden_tokens(ort_library: Path, given: dict[str, Any], sink: int) -> None:
    """A bias of -inf hides tokens; where it hides all, the output is zero."""
    attributes = make_attributes(**given, has_bias=1, has_sink=sink)
    text = make_text(attributes, TOKENS)
    assert text.bias is not None
    text.bias[:, :, :, 3:20:2] = -np.inf
    text.bias[:, :, [5, 33, 40]] = -np.inf
    run(ort_library, attributes, text)


@pytest.mark.parametrize("given", [{"head_size": 64}, SLERP], ids=["exact", "slerp"])
def test_one_bias_for_all_rows(ort_library: Path, given: dict[str, Any]) -> None:
    """A bias of batch 1 applies to each row."""
    attributes = make_attributes(**given, has_bias=1)
    text = make_text(attributes, TOKENS, batch=3)
    assert text.bias is not None
    text.bias = text.bias[:1]
    run(ort_library, attributes, text, batch=3)


@pytest.mark.parametrize("given", [{"head_size": 64}, SLERP], ids=["exact", "slerp"])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads(ort_library: Path, given: dict[str, Any], threads: int) -> None:
    """One thread, two, and more than there are heads."""
    attributes = make_attributes(**given)
    run(ort_library, attributes, make_text(attributes, TOKENS), threads)
