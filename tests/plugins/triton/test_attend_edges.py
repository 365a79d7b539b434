"""What the attention kernels must not do: read what no token lies in, or write out of bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicache.exporter import schemas
from tests.helpers import make_attributes, make_text, poisoned_state
from tests.plugins.subspace_text import make_tables, subspace_attributes
from tests.plugins.triton.attend_call import AttendCall, Blocks
from tests.plugins.triton.inline_ptx import evaluate
from tests.plugins.triton.interpreter import Array, Buffer, launch, scratch

import triton  # isort: skip
import triton.language as tl  # isort: skip
from minicache.plugins.triton.planes import level_instructions  # isort: skip
from minicache.plugins.triton.rotation import turn_of  # isort: skip

SMALL = {"head_size": 64, "num_heads": 2, "kv_num_heads": 1, "has_bias": 1}
RING = {"window": 5, "sinks": 3, "ring_slots": 11}
CAPACITY = 48


def attend(attributes: dict[str, Any], past: list[int], total: list[int]) -> Array:
    """Runs a call of three tokens on an empty, poisoned state, whatever its lengths say."""
    full = schemas.attributes_with_defaults({**attributes, "group_slot": 0})
    call = make_text(full, 8, batch=2, dtype=np.float16).call([0, 0], [3, 3], capacity=CAPACITY)
    inputs = {"query": call.queries[0], "key": call.keys[0], "value": call.values[0]}
    assert call.bias is not None
    inputs |= {"attention_bias": call.bias, "past_lengths": np.array(past, np.int32)}
    inputs |= {"total_lengths": np.array(total, np.int32)}
    state = poisoned_state(full, 2, CAPACITY, 4)
    inputs |= {f"past_{name}": array for name, array in state.items()}
    if full["mode"] == "subspace":
        inputs |= make_tables(full)[0]
    return AttendCall(full, inputs, Blocks(splits=2, exact_splits=1)).run()


@pytest.mark.parametrize(
    "attributes",
    [
        make_attributes(**SMALL),
        make_attributes(**SMALL, local_window_size=9, ring_slots=12),
        make_attributes(**SMALL, **RING, mode="slerp", retention="budget"),
        subspace_attributes(**SMALL, **RING, segment_length=16),
    ],
    ids=["growing", "sliding", "slerp", "subspace"],
)
def test_any_lengths(attributes: dict[str, Any]) -> None:
    """Lengths that contradict the call break no bounds: the launches check the memory around."""
    attend(attributes, [1_000_000, -7], [1_000_003, 2])
    attend(attributes, [48, 40], [60, 20])


def test_rows_without_new_tokens_are_zero() -> None:
    """So is padding; what the kernels are given there is NaN."""
    attributes = make_attributes(**SMALL)
    out = attend(attributes, [0, 0], [2, 0])
    assert np.isfinite(out[0, :2]).all()
    assert np.abs(out[0, :2]).max() > 0
    np.testing.assert_array_equal(out[0, 2:], 0)
    np.testing.assert_array_equal(out[1], 0)


@pytest.mark.parametrize(("bits", "places"), [(8, 2), (4, 4), (2, 8)])
def test_levels_of_all_words(bits: int, places: int) -> None:
    """The PTX that takes words apart makes the level of every place of every word, exactly."""
    words = np.arange(2**16, dtype=np.uint16)
    for place in range(places):
        made = evaluate(level_instructions(place, bits), words.view(np.uint32)).view(np.float16)
        np.testing.assert_array_equal(made, words >> place * bits & 2**bits - 1)


@triton.jit
def turn_all(angle_ptr, cosine_ptr, sine_ptr, COUNT: tl.constexpr):
    """Cosine and sine of COUNT angles."""
    at = tl.arange(0, COUNT)
    cosine, sine = turn_of(tl.load(angle_ptr + at))
    tl.store(cosine_ptr + at, cosine)
    tl.store(sine_ptr + at, sine)


def test_turns_of_any_size() -> None:
    """Angles of distant segments are as exact as small ones; so are those on the axes."""
    rng = np.random.default_rng(0)
    wide = [rng.uniform(-10, 10, 64), rng.uniform(0, 1e6, 128), np.arange(64) * np.pi / 4]
    angles = np.concatenate(wide)
    cosine, sine = scratch((256,), np.float32), scratch((256,), np.float32)
    launch(turn_all, (1,), [Buffer(angles), cosine, sine], COUNT=256)
    np.testing.assert_allclose(cosine.array, np.cos(angles), atol=2**-23)
    np.testing.assert_allclose(sine.array, np.sin(angles), atol=2**-23)
