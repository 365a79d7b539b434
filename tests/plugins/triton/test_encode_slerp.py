"""The writer's kernels on ``slerp`` codes against the reference, in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.helpers import Text, make_attributes, make_text
from tests.plugins.aligned_text import aligned_attributes, make_alignment, turned_text
from tests.plugins.triton.encode_walk import EncodeWalk
from tests.plugins.triton.interpreter import TYPES

SMALL: dict[str, Any] = {"mode": "slerp", "window": 5, "sinks": 3, "ring_slots": 9}
# Ragged: more new tokens than the window in one row and than the ring, then none, then single ones.
CALLS = [((0, 0), (23, 2)), ((23, 2), (0, 12)), ((23, 14), (1, 1))]


def run(walk: EncodeWalk, text: Text, calls: Any = CALLS) -> None:
    """Compares all calls."""
    for past, new in calls:
        walk.step(text.call(past, new))
    walk.finish()


@pytest.mark.parametrize(
    ("bits", "dtype", "exact", "variant"),
    [
        (16, "fp16", "fp16", {"head_size": 20}),
        (8, "bf16", "fp16", {"group_size": 3, "magnitude": "blended", "head_size": 24}),
        (4, "bf16", "bf16", {"group_size": 3, "magnitude": "upper", "head_size": 20}),
        (4, "fp16", "fp16", {"group_size": 1}),
        (8, "fp16", "fp16", {"kv_num_heads": 2, "key_head_permutation": (0, 1, 1, 0), "sinks": 0}),
        (16, "bf16", "fp16", {"window": 0, "slerp_t": 0.25, "sinks": 6}),
    ],
    ids=str,
)
def test_codes(bits: int, dtype: str, exact: str, variant: dict[str, Any]) -> None:
    """Each width and rule of magnitudes, over ragged calls, in models of both types."""
    attributes = make_attributes(**SMALL | {"key_bits": bits, "value_bits": 8 if bits < 8 else 4}
                                 | variant)  # fmt: skip
    text = make_text(attributes, 32, batch=2, dtype=TYPES[dtype])
    run(EncodeWalk(attributes, exact_dtype=TYPES[exact]), text)


def test_more_layers_than_a_launch_takes() -> None:
    """Ten layers are gathered and stored by two launches."""
    attributes = make_attributes(**SMALL, group_size=10, retention="threshold", slerp_t=0.5)
    text = make_text(attributes, 16, dtype=np.float16)
    run(EncodeWalk(attributes, batch=1, retained=4), text, [((0,), (15,)), ((15,), (1,))])


@pytest.mark.parametrize("magnitude", ["own", "blended"])
def test_vectors_without_an_arc(magnitude: str) -> None:
    """Equal, opposite, nearly opposite and zero vectors, and lengths beyond fp16."""
    attributes = make_attributes(**SMALL, group_size=3, magnitude=magnitude, retention="budget",
                                 key_bits=16, value_bits=8)  # fmt: skip
    text = make_text(attributes, 32, dtype=TYPES["bf16"])
    tiny = np.where(np.arange(16) == 3, 2.0**-7, 0)
    for array in (text.key, text.value):
        wide = array.astype(np.float64)[:, 0]
        wide[1, 3] = 2 * wide[0, 3]
        wide[1, 4] = -wide[0, 4]
        wide[1, 5] = -wide[0, 5] * (1 + tiny)
        wide[1, 6] = wide[0, 6] * (1 + tiny)
        wide[0, 7] = wide[1, 8] = wide[2, 9] = wide[:2, 10] = wide[1:, 11] = wide[:, 12] = 0
        wide[:, 13] *= 2.0**60
        wide[2, 14] *= 2.0**16
        wide[:, 15] *= 2.0**-70
        array[:, 0] = wide.astype(array.dtype)
    walk = EncodeWalk(attributes, batch=1, retained=4, exact_dtype=TYPES["bf16"])
    run(walk, text, [((0,), (29,)), ((29,), (1,))])
    stored = np.abs(walk.state["key_magnitude"][0, 0, 13].astype(np.float64))
    assert (stored == 65504).all()
    assert (walk.state["key_magnitude"][0, 0, 12] == 0).all()


@pytest.mark.parametrize(
    ("variant", "table", "rotary"),
    [
        ({"segment_length": 8, "retention": "threshold", "retention_threshold": 0.6}, "fp16", None),
        ({"segment_length": 4, "rotary_interleaved": 1, "kv_num_heads": 2, "key_bits": 4,
          "key_head_permutation": (1, 0, 0, 1), "magnitude": "blended"}, "fp32", 10),
        ({"group_size": 3, "key_bits": 16, "value_bits": 4, "magnitude": "upper"}, "fp32", None),
    ],
    ids=str,
)  # fmt: skip
def test_aligned(variant: dict[str, Any], table: str, rotary: int | None) -> None:
    """Vectors are merged in the code space, keys in the frame of their segment."""
    attributes = aligned_attributes(**SMALL | {"head_size": 20} | variant)
    dtype = {"fp16": np.float16, "fp32": np.float32}[table]
    tables = make_alignment(attributes, dtype=dtype, rotary=rotary)
    text = make_text(attributes, 32, batch=2, dtype=np.float16)
    text = turned_text(attributes, tables, text)
    run(EncodeWalk(attributes, tables=tables, retained=5), text)


def test_layers_alike_once_aligned() -> None:
    """Where alignment makes layers equal, the lengths of the layers' own vectors are stored."""
    attributes = aligned_attributes(**SMALL, segment_length=8)
    tables = make_alignment(attributes)
    text = make_text(attributes, 32, batch=2, noise=0.0)
    text = turned_text(attributes, tables, text)
    text = Text(*(x.astype(np.float16) for x in (text.query, text.key, text.value)))
    run(EncodeWalk(attributes, tables=tables), text, CALLS[:1])
