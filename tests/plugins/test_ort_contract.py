"""What the CPU kernel promises beyond numbers: errors, in-place state, padding, determinism."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import make_attributes, make_text, poisoned_state
from tests.plugins.comparison import Comparison
from tests.plugins.ort_group import OrtGroup
from tests.plugins.ort_model import group_model

CAPACITY = 64
MODES: list[dict[str, Any]] = [
    {"head_size": 64, "num_heads": 4, "kv_num_heads": 2},
    {"head_size": 64, "mode": "slerp", "window": 8, "ring_slots": 16, "retention": "budget",
     "num_heads": 4, "kv_num_heads": 2, "code_layout": "tile"},
]  # fmt: skip


def make_kernel(library: Path, mode: dict[str, Any], batch: int = 2, **options: Any) -> OrtGroup:
    """A kernel on an empty, poisoned state."""
    attributes = make_attributes(**mode)
    dtype = np.float32 if attributes["mode"] == "exact" else np.float16
    state = poisoned_state(attributes, batch, CAPACITY, 5, dtype)
    return OrtGroup(library, attributes, state, np.float32, **options)


@pytest.mark.parametrize("mode", MODES, ids=["exact", "slerp"])
@pytest.mark.parametrize(
    ("past", "total", "numbers"),
    [
        ([0, 60], [5, 65], ("1", "60", "65", "64")),
        ([-1, 0], [1, 5], ("0", "-1")),
        ([0, 7], [5, 3], ("1", "7", "3")),
        ([0, 0], [6, 5], ("0", "6", "5")),
    ],
)
def test_impossible_lengths_name_row_and_values(
    ort_library: Path,
    mode: dict[str, Any],
    past: list[int],
    total: list[int],
    numbers: tuple[str, ...],
) -> None:
    """Lengths that do not fit fail the run with the row and its numbers, and write nothing."""
    kernel = make_kernel(ort_library, mode)
    before = {name: array.tobytes() for name, array in kernel.state.items()}
    call = make_text(kernel.attributes, 8, batch=2).call([0, 0], [5, 5])
    call.past, call.total = np.array(past, np.int32), np.array(total, np.int32)
    with pytest.raises(Exception, match="row") as failure:
        kernel.run(call)
    for number in numbers:
        assert number in str(failure.value), str(failure.value)
    for name, array in kernel.state.items():
        assert array.tobytes() == before[name], f"{name} was written"


@pytest.mark.parametrize("mode", MODES, ids=["exact", "slerp"])
def test_the_cache_can_be_filled_to_the_last_slot(ort_library: Path, mode: dict[str, Any]) -> None:
    """A total length of exactly C works, also in one call from nothing."""
    for calls in ([([0, 0], [64, 64])], [([0, 0], [60, 33]), ([60, 33], [4, 31])]):
        comparison = Comparison(make_kernel(ort_library, mode))
        text = make_text(comparison.kernel.attributes, 64, batch=2)
        for past, new in calls:
            comparison.step(text.call(past, new))


def test_a_sliding_window_outlives_its_capacity(ort_library: Path) -> None:
    """With a sliding window more than C tokens may pass."""
    attributes = make_attributes(head_size=64, local_window_size=9, ring_slots=13)
    state = poisoned_state(attributes, 1, 16, 0, np.float32)
    comparison = Comparison(OrtGroup(ort_library, attributes, state))
    text = make_text(attributes, 60)
    past = 0
    for new in (10, 20, 1, 1, 5, *[1] * 20):
        comparison.step(text.call([past], [new]))
        past += new


@pytest.mark.parametrize("mode", MODES, ids=["exact", "slerp"])
def test_empty_rows_leave_their_state(ort_library: Path, mode: dict[str, Any]) -> None:
    """A row with total = past outputs zeros and keeps every byte of its state."""
    kernel = make_kernel(ort_library, mode)
    text = make_text(kernel.attributes, 48, batch=2)
    kernel.run(text.call([0, 0], [30, 20]))
    before = {name: array[1].tobytes() for name, array in kernel.state.items()}
    attention = kernel.run(text.call([30, 20], [3, 0]))
    assert not np.stack(attention)[:, 1].any()
    for name, array in kernel.state.items():
        assert array[1].tobytes() == before[name], name
    attention = kernel.run(text.call([33, 20], [0, 0], slots=2))
    assert not np.stack(attention).any()


@pytest.mark.parametrize("mode", MODES, ids=["exact", "slerp"])
def test_padding_is_never_read(ort_library: Path, mode: dict[str, Any]) -> None:
    """Rows padded with NaN, by more slots than any row needs, output zeros there."""
    kernel = make_kernel(ort_library, mode)
    text = make_text(kernel.attributes, 48, batch=2)
    attention = np.stack(kernel.run(text.call([0, 0], [7, 2], slots=12)))
    assert np.isfinite(attention).all()
    assert not attention[:, 0, 7:].any()
    assert not attention[:, 1, 2:].any()


@pytest.mark.parametrize("mode", MODES, ids=["exact", "slerp"])
def test_out_of_place_gives_the_same(ort_library: Path, mode: dict[str, Any]) -> None:
    """Different memory for past and present: the same outputs, and past is left as it was."""
    inside, outside = (make_kernel(ort_library, mode, in_place=p) for p in (True, False))
    text = make_text(inside.attributes, 48, batch=2)
    for past, new in (([0, 0], [20, 31]), ([20, 31], [1, 1]), ([21, 32], [9, 2])):
        call = text.call(past, new)
        before = {name: (array, array.tobytes()) for name, array in outside.state.items()}
        np.testing.assert_array_equal(np.stack(inside.run(call)), np.stack(outside.run(call)))
        for name, (array, data) in before.items():
            assert array.tobytes() == data, f"past {name} was written"
            assert outside.state[name].tobytes() == inside.state[name].tobytes(), name


@pytest.mark.parametrize("mode", MODES, ids=["exact", "slerp"])
def test_runs_are_bit_identical(ort_library: Path, mode: dict[str, Any]) -> None:
    """The same calls give the same bits again."""
    kernels = [make_kernel(ort_library, mode, threads=2) for _ in range(2)]
    text = make_text(kernels[0].attributes, 60, batch=2)
    past = [0, 0]
    for new in ([40, 29], *[[1, 1]] * 16):
        outputs = [np.stack(k.run(text.call(past, new))).tobytes() for k in kernels]
        assert outputs[0] == outputs[1]
        past = [p + n for p, n in zip(past, new, strict=True)]
    for name, array in kernels[0].state.items():
        assert array.tobytes() == kernels[1].state[name].tobytes(), name


@pytest.mark.parametrize("mode", MODES, ids=["exact", "slerp"])
@settings(max_examples=12)
@given(data=st.data())
def test_any_lengths(ort_library: Path, mode: dict[str, Any], data: st.DataObject) -> None:
    """Random calls, ragged, empty, and going back by up to the slack, equal the reference."""
    kernel = make_kernel(ort_library, mode)
    comparison = Comparison(kernel)
    slack = kernel.attributes["ring_slots"] - kernel.attributes["window"]
    text = make_text(kernel.attributes, CAPACITY, batch=2)
    length, furthest = [0, 0], [0, 0]
    for _ in range(data.draw(st.integers(1, 6))):
        # The slack is measured from the furthest that a row has been.
        back = [max(0, far - slack) for far in furthest]
        past = [data.draw(st.integers(min(b, n), n)) for b, n in zip(back, length, strict=True)]
        new = [data.draw(st.integers(0, min(20, CAPACITY - p))) for p in past]
        comparison.step(text.call(past, new, slots=max(1, *new)))
        length = [p + n if n else now for p, n, now in zip(past, new, length, strict=True)]
        furthest = [max(far, now) for far, now in zip(furthest, length, strict=True)]
    comparison.finish()


def test_unknown_dimensions_stay_unknown(ort_library: Path) -> None:
    """Shape inference passes unnamed dimensions on as unknown; -1 would break the next node."""
    attributes = make_attributes(**MODES[1], group_size=1)
    model = group_model(attributes, np.float32, poisoned_state(attributes, 1, CAPACITY, 5))
    for value in model.graph.input:
        for dimension in value.type.tensor_type.shape.dim[:2]:
            dimension.Clear()
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(ort_library))
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options)
    for output in session.get_outputs():
        known = [dimension for dimension in output.shape if isinstance(dimension, int)]
        assert min(known, default=0) >= 0, f"{output.name} has the inferred shape {output.shape}"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("key_code", lambda x: x[..., :-16]),
        ("exact_key", lambda x: x[:, :, :, :-1]),
        ("value_magnitude", lambda x: x[..., :1]),
        ("retained_value", lambda x: x[:, :, :, :2]),
        ("key_magnitude", lambda x: x.astype(np.float32)),
        ("key_code", lambda x: x.view(np.uint8)),
        ("retained_position", lambda x: x.astype(np.int64)),
        ("exact_value", lambda x: x.astype(np.float64)),
    ],
)
def test_wrong_states_are_refused(ort_library: Path, name: str, change: Any) -> None:
    """A state of the wrong shape or type fails with the state's name, not with garbage."""
    attributes = make_attributes(**MODES[1])
    state = poisoned_state(attributes, 2, CAPACITY, 5)
    state[name] = np.ascontiguousarray(change(state[name]))
    with pytest.raises(Exception) as failure:
        kernel = OrtGroup(ort_library, attributes, state)
        kernel.run(make_text(attributes, 8, batch=2).call([0, 0], [5, 5]))
    assert name in str(failure.value), str(failure.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"key_bits": (2, 64)}, "key_bits"),
        ({"num_heads": 3}, "num_heads"),
        ({"ring_slots": 4}, "ring_slots"),
        ({"segment_length": -1}, "segment_length"),
        ({"key_head_permutation": (0, 1, 0)}, "key_head_permutation"),
    ],
)
def test_contradicting_attributes_are_refused(
    ort_library: Path, change: dict[str, Any], words: str
) -> None:
    """A contradiction among attributes fails when the session is made, and is named."""
    good = make_attributes(**MODES[1])
    state = poisoned_state(good, 1, CAPACITY, 5)
    with pytest.raises(Exception, match=words):
        OrtGroup(ort_library, {**good, **change}, state)
