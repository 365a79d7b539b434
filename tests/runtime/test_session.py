"""What a session promises: the same logits however the text is cut."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from minicache.runtime import open_model
from minicache.runtime.errors import CapacityError
from minicache.runtime.session import Session
from tests.runtime.conftest import OpenTiny
from tests.runtime.reference_graph import ReferenceGraph
from tests.runtime.session_text import (
    LENGTH,
    assert_close,
    assert_same,
    run_in_chunks,
    snapshot,
    text,
)
from tests.runtime.tiny_model import MAX_LENGTH, SINKS, VARIANTS, VOCABULARY, WINDOW
from tests.tolerances import LOGITS


@pytest.mark.parametrize("chunk", [1, 7, 16])
def test_exact_chunks_equal_one_call(open_tiny: OpenTiny, chunk: int) -> None:
    session, ids = open_tiny("exact"), text()
    whole = session.forward(ids)
    session.reset()
    assert_close(run_in_chunks(session, ids, chunk), whole)
    assert session.lengths.tolist() == [LENGTH]


def test_slerp_loses_nothing_within_the_window(open_tiny: OpenTiny) -> None:
    ids = text(length=SINKS + WINDOW)
    exact = open_tiny("exact").forward(ids)
    # 2^-11: the window is stored in fp16
    merged = run_in_chunks(open_tiny("slerp"), ids, 3)
    np.testing.assert_allclose(merged, exact, atol=LOGITS["float16"] * np.abs(exact).max())


def test_slerp_loses_something_beyond_it(open_tiny: OpenTiny) -> None:
    ids = text()
    exact = open_tiny("exact").forward(ids)
    merged = run_in_chunks(open_tiny("slerp"), ids, 4)
    assert np.abs(merged - exact)[:, -1].max() > LOGITS["float16"] * np.abs(exact).max()


@pytest.mark.parametrize("variant", VARIANTS)
def test_ragged_rows_equal_each_row_alone(open_tiny: OpenTiny, variant: str) -> None:
    ids, calls = text(3), ([9, 1, 0], [20, 31, 5], [1, 1, 1], [0, 20, 1])
    batch, alone = open_tiny(variant, batch_size=3), open_tiny(variant)
    used = np.zeros(3, int)
    results = []
    for counts in calls:
        part = np.full((3, max(counts)), -1)  # padding may hold anything
        for row, count in enumerate(counts):
            part[row, :count] = ids[row, used[row] : used[row] + count]
        results.append(batch.forward(part, counts))
        used += counts
    for row in range(3):
        alone.reset()
        start = 0
        for counts, result in zip(calls, results, strict=True):
            assert not result[row, counts[row] :].any(), "padding is zero"
            if counts[row]:
                expected = alone.forward(ids[row : row + 1, start : start + counts[row]])
                assert_close(result[row : row + 1, : counts[row]], expected)
            start += counts[row]
    assert batch.lengths.tolist() == used.tolist()


@pytest.mark.parametrize("variant", VARIANTS)
def test_last_logits_are_the_last_of_all(open_tiny: OpenTiny, variant: str) -> None:
    session, ids, counts = open_tiny(variant, batch_size=2), text(2, 9), [9, 4]
    everything = session.forward(ids, counts)
    session.reset()
    last = session.forward(ids, counts, logits="last")
    assert last.shape == (2, 1, VOCABULARY)
    assert_close(last[:, 0], np.stack([everything[0, 8], everything[1, 3]]))
    assert session.forward(ids, [0, 1], logits=None).shape == (2, 0, VOCABULARY)
    empty = session.forward(ids, [0, 1], logits="last")
    assert not empty[0].any() and empty[1].any()


def test_logits_are_the_callers_to_keep(open_tiny: OpenTiny) -> None:
    session, ids = open_tiny(), text()
    first = session.forward(ids[:, :4])
    kept = first.copy()
    session.forward(ids[:, 4:8])
    np.testing.assert_array_equal(first, kept)
    out = np.empty((1, 4, VOCABULARY), np.float32)
    assert session.forward(ids[:, 8:12], out=out) is out
    session.rewind(4)
    np.testing.assert_array_equal(session.forward(ids[:, 8:12]), out)


def test_fp16_logits_come_as_fp32(open_tiny: OpenTiny) -> None:
    half = open_tiny("exact", {"logits_type": TensorProto.FLOAT16}).forward(text())
    whole = open_tiny("exact").forward(text())
    assert half.dtype == np.float32
    np.testing.assert_allclose(half, whole, atol=LOGITS["float16"] * np.abs(whole).max())


@pytest.mark.parametrize("variant", VARIANTS)
def test_prefill_gives_each_rows_last_logits(open_tiny: OpenTiny, variant: str) -> None:
    session, ids, counts = open_tiny(variant, batch_size=3), text(3), [60, 13, 0]
    seen: list[int] = []
    last = session.prefill(ids, counts, chunk=16, progress=seen.append)
    assert sum(seen) == LENGTH and session.lengths.tolist() == counts
    assert not last[2].any()
    alone = open_tiny(variant)
    assert_close(last[1:2], alone.prefill(ids[1, :13], chunk=16))


@pytest.mark.parametrize("variant", VARIANTS)
def test_reset_equals_a_new_session(open_tiny: OpenTiny, variant: str) -> None:
    used, fresh = open_tiny(variant), open_tiny(variant)
    used.forward(text(seed=5, length=MAX_LENGTH))
    used.reset()
    assert used.lengths.tolist() == [0]
    for part in np.split(text(), 4, axis=1):
        result, expected = used.forward(part), fresh.forward(part)
        np.testing.assert_array_equal(result, expected)
    assert used.retention_stats() == fresh.retention_stats()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_full_cache_refuses_and_stays_as_it_is(open_tiny: OpenTiny, variant: str) -> None:
    session = open_tiny(variant, batch_size=2, max_sequence_length=50)
    assert session.capacity == 64  # whole key tiles
    session.forward(text(2), [60, 20])
    before = snapshot(session)
    with pytest.raises(CapacityError, match=r"row 0 holds 60 tokens and 5 more .* 64"):
        session.forward(text(2, 5))
    with pytest.raises(CapacityError):
        session.prefill(text(2, 5))
    assert_same(snapshot(session), before)
    session.forward(text(2, 5), [4, 5])
    assert session.lengths.tolist() == [64, 25]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_library_equals_the_reference(
    ort_library: Path,
    tiny_folder: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    variant: str,
) -> None:
    folder, ids = tiny_folder(variant), text(2)
    with Session(folder, batch_size=2, threads=1) as library:
        monkeypatch.setattr(open_model, "open_graph", ReferenceGraph)
        with Session(folder, batch_size=2) as reference:
            for start, counts in ((0, [20, 13]), (20, [1, 1]), (21, [16, 0]), (37, [16, 16])):
                part = ids[:, start : start + max(counts)]
                assert_close(library.forward(part, counts), reference.forward(part, counts))
            assert library.retention_stats() == reference.retention_stats()
