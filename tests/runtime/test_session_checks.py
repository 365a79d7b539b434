"""What a session refuses, with a sentence that names the value found."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from minicache.runtime import cache, checks
from minicache.runtime.errors import SessionError
from tests.runtime.conftest import OpenTiny
from tests.runtime.tiny_model import MAX_LENGTH, VOCABULARY


@pytest.mark.parametrize(
    ("ids", "lengths", "options", "message"),
    [
        ([1, 2], None, {}, r"shape \[2\]"),
        (np.zeros((2, 3), int), None, {}, r"shape \[2, 3\]"),
        (np.zeros((1, 0), int), None, {}, r"shape \[1, 0\]"),
        ([[1, 2], [3]], None, {}, "not rectangular"),
        ([[0.5]], None, {}, "float64"),
        ([[True]], None, {}, "bool"),
        ([[3, 256]], None, {}, r"input_ids\[0, 1\] is 256; the vocabulary ends at 255"),
        ([[-1]], None, {}, "is -1"),
        ([[1, 2]], [3], {}, r"lengths\[0\] is 3"),
        ([[1, 2]], [-1], {}, r"lengths\[0\] is -1"),
        ([[1, 2]], 2, {}, r"shape \[\]"),
        ([[1, 2]], [1.0], {}, "float64"),
        ([[1]], None, {"logits": "first"}, "first"),
        ([[1]], None, {"out": np.empty((1, 1, 5), np.float32)}, r"\[1, 1, 5\]"),
        ([[1]], None, {"out": np.empty((1, 1, VOCABULARY))}, "float64"),
    ],
)
def test_wrong_inputs_are_refused(
    open_tiny: OpenTiny, ids: Any, lengths: Any, options: dict[str, Any], message: str
) -> None:
    session = open_tiny()
    with pytest.raises(SessionError, match=message):
        session.forward(ids, lengths, **options)
    assert session.lengths.tolist() == [0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"max_sequence_length": 0}, "max_sequence_length is 0"),
        ({"max_sequence_length": MAX_LENGTH + 1}, f"up to {MAX_LENGTH}"),
        ({"threads": 0}, "threads is 0"),
    ],
)
def test_wrong_sizes_are_refused(
    open_tiny: OpenTiny, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SessionError, match=message):
        open_tiny("exact", **options)


def test_a_graph_of_one_row_takes_no_batch(open_tiny: OpenTiny) -> None:
    manifest = dataclasses.replace(open_tiny().manifest, fixed_batch=1)
    assert checks.session_size(manifest, 1, 8, None) == 8
    with pytest.raises(SessionError, match=r"batch_size is 2.*batches of 1.*dynamic batch"):
        checks.session_size(manifest, 2, 8, None)


def test_a_cache_beyond_memory_is_refused(
    open_tiny: OpenTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(cache, "LazyZeros", refuse)
    with pytest.raises(SessionError, match=r"1 row\(s\) x 160 tokens does not fit into memory"):
        open_tiny()
