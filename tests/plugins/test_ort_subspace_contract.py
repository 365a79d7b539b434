"""What the CPU kernel promises in subspace mode beyond plain texts: lengths, edges, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import make_text, poisoned_state
from tests.plugins.ort_group import OrtGroup
from tests.plugins.ort_subspace import BASE, make_comparison
from tests.plugins.ragged_text import CAPACITY
from tests.plugins.subspace_text import make_tables, subspace_attributes


def test_going_back_and_running_twice(subspace_library: Path) -> None:
    """Rewinding, re-running and going on in another way equals the reference at each call."""
    comparison = make_comparison(subspace_library, {}, batch=1, capacity=64)
    text, other = (make_text(comparison.kernel.attributes, 64, seed=seed) for seed in (3, 4))
    for past, new in ((0, 40), (40, 1), (40, 1), (41, 6), (41, 6), (37, 2), (39, 5), (38, 1)):
        comparison.step((other if past < 40 else text).call([past], [new]))
    comparison.finish()


@settings(max_examples=8)
@given(data=st.data())
def test_any_lengths(subspace_library: Path, data: st.DataObject) -> None:
    """Random calls, ragged, empty, and going back by up to the slack, equal the reference."""
    comparison = make_comparison(subspace_library, {"segment_length": 16}, capacity=64)
    slack = BASE["ring_slots"] - BASE["window"]
    text = make_text(comparison.kernel.attributes, 64, batch=2)
    length, furthest = [0, 0], [0, 0]
    for _ in range(data.draw(st.integers(1, 5))):
        back = [max(0, far - slack) for far in furthest]
        past = [data.draw(st.integers(min(b, n), n)) for b, n in zip(back, length, strict=True)]
        new = [data.draw(st.integers(0, min(20, 64 - p))) for p in past]
        comparison.step(text.call(past, new, slots=max(1, *new)))
        length = [p + n if n else now for p, n, now in zip(past, new, length, strict=True)]
        furthest = [max(far, now) for far, now in zip(furthest, length, strict=True)]
    comparison.finish()


def test_a_prefill_of_many_segments_fills_the_cache(subspace_library: Path) -> None:
    """One call writes codes of nine segments, the last token fills the last slot."""
    comparison = make_comparison(subspace_library, {"segment_length": 16})
    text = make_text(comparison.kernel.attributes, CAPACITY, batch=2)
    comparison.step(text.call([0, 0], [CAPACITY - 1, 90]))
    comparison.step(text.call([CAPACITY - 1, 90], [1, 7]))
    comparison.finish()


def test_unusual_vectors(subspace_library: Path) -> None:
    """Zero, tiny and huge vectors store the reference's codes and magnitudes."""
    comparison = make_comparison(subspace_library, {"group_size": 1}, batch=1, capacity=64)
    kernel = comparison.kernel
    text = make_text(kernel.attributes, 64)
    for array in (text.key, text.value):
        array[:, :, 6] = 0
        array[:, :, 7] *= 1e-6
        array[:, :, 36] = 0  # encoded from its slot, as is the next one
        array[:, :, 37] *= 1e-3
    text.value[:, :, 8] *= 1e5
    for past, new in ((0, 40), *((p, 1) for p in range(40, 60))):
        comparison.step(text.call([past], [new]))
    for kind in ("key", "value"):
        assert (kernel.state[f"{kind}_magnitude"][0, :, [6, 36]] == 0).all()
    assert (kernel.state["value_magnitude"][0, :, 8] == 65504).all()
    comparison.finish()


def test_vectors_that_are_not_finite(subspace_library: Path) -> None:
    """They leave the code of a zero vector and a magnitude of 0; later attention is finite."""
    variant = {"group_size": 1, "code_layout": "row"}
    comparison = make_comparison(subspace_library, variant, batch=1, capacity=64)
    kernel, text = comparison.kernel, make_text(comparison.kernel.attributes, 64)
    text.key[0, 0, 6, 0, 3], text.value[0, 0, 7, 1, 5] = np.inf, np.nan
    kernel.run(text.call([0], [40]))  # attention to these tokens is not finite either
    nothing = [0x80] * 16 + [0x88] * 8 + [0xAA] * 8
    for kind, head, token in (("key", 0, 6), ("value", 1, 7)):
        assert kernel.state[f"{kind}_magnitude"][0, head, token, 0] == 0
        assert kernel.state[f"{kind}_code"][0, head, token].view(np.uint8).tolist() == nothing
    for past in range(40, 44):
        comparison.step(text.call([past], [1]))


@pytest.mark.parametrize("threads", [1, 5])
def test_runs_repeat_bit_by_bit(subspace_library: Path, threads: int) -> None:
    """The same calls give the same bytes, out of place too, however many threads there are."""
    made = [
        make_comparison(subspace_library, {}, threads=threads, in_place=place).kernel
        for place in (True, True, False)
    ]
    text = make_text(made[0].attributes, 60, batch=2)
    past = [0, 0]
    for new in ([40, 29], *[[1, 1]] * 8):
        outputs = [np.stack(kernel.run(text.call(past, new))).tobytes() for kernel in made]
        assert len(set(outputs)) == 1
        past = [p + n for p, n in zip(past, new, strict=True)]
    for name, array in made[0].state.items():
        for other in made[1:]:
            assert array.tobytes() == other.state[name].tobytes(), name


def test_empty_rows_and_padding(subspace_library: Path) -> None:
    """Padding is never read, outputs zeros, and a row without new tokens keeps its state."""
    kernel = make_comparison(subspace_library, {}).kernel
    text = make_text(kernel.attributes, 60, batch=2)
    attention = np.stack(kernel.run(text.call([0, 0], [40, 30], slots=45)))
    assert np.isfinite(attention).all()
    assert not attention[:, 0, 40:].any()
    before = {name: array[1].tobytes() for name, array in kernel.state.items()}
    attention = np.stack(kernel.run(text.call([40, 30], [3, 0])))
    assert not attention[:, 1].any()
    for name, array in kernel.state.items():
        assert array[1].tobytes() == before[name], name


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"has_decoder": 0}, "has_decoder"),
        ({"retention": "budget"}, "retention"),
        ({"kv_num_heads": 4, "code_heads": 3}, "code_heads"),
        ({"key_bits": (16, 64)}, "key_bits"),
        ({"key_bits": (8, 12)}, "key_bits"),
        ({"value_bits": (4, 32, 8, 32)}, "value_bits"),
        ({"segment_length": -1}, "segment_length"),
        ({"value_head_permutation": (0, 1, 1, 1)}, "value_head_permutation"),
    ],
    ids=str,
)
def test_contradicting_attributes_are_refused(
    subspace_library: Path, change: dict[str, Any], words: str
) -> None:
    """A contradiction among attributes fails when the session is made, and is named."""
    good = subspace_attributes(**BASE)
    bad = subspace_attributes(**BASE | change)
    state = poisoned_state(bad, 1, 64)
    with pytest.raises(Exception, match=words):
        OrtGroup(subspace_library, bad, state, tables=make_tables(good))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("key_decoder", lambda x: x[:, :-8]),
        ("value_decoder", lambda x: x[:1]),
        ("key_encoder", lambda x: x[..., :64]),
        ("value_step", lambda x: x[:, 1:]),
        ("value_encoder", lambda x: x.astype(np.float64)),
        ("rope_frequencies", lambda x: np.concatenate([x, x])),
    ],
)
def test_wrong_tables_are_refused(subspace_library: Path, name: str, change: Any) -> None:
    """A table of the wrong shape or type fails with its name, not with garbage."""
    attributes = subspace_attributes(**BASE)
    tables = make_tables(attributes)
    tables[-1][name] = np.ascontiguousarray(change(tables[-1][name]))
    state = poisoned_state(attributes, 2, 64)
    with pytest.raises(Exception) as failure:
        kernel = OrtGroup(subspace_library, attributes, state, tables=tables)
        kernel.run(make_text(attributes, 8, batch=2).call([0, 0], [5, 5]))
    assert name in str(failure.value), str(failure.value)
