"""Continuous batching: every request gets what it would get alone, whatever runs beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minicache.runtime import open_model
from minicache.runtime.batch import Batch
from minicache.runtime.errors import BatchFullError, CapacityError, SessionError
from minicache.runtime.generated_token import GeneratedToken
from minicache.runtime.session import Session
from tests.runtime.conftest import OpenTiny
from tests.runtime.reference_graph import ReferenceGraph
from tests.runtime.session_text import text
from tests.runtime.tiny_model import VARIANTS, VOCABULARY

CHUNK = 16


def drive(batch: Batch, limit: int = 1000) -> dict[int, list[GeneratedToken]]:
    given: dict[int, list[GeneratedToken]] = {}
    for _ in range(limit):
        if not batch.active:
            return given
        for request, token in batch.step():
            given.setdefault(request, []).append(token)
    raise AssertionError(f"after {limit} steps {batch.active} have not ended")


def alone(session: Session, prompt: Any, count: int, **options: Any) -> list[GeneratedToken]:
    """A single run, with the batch's chunks."""
    batch = Batch(session, chunk=CHUNK)
    batch.add(prompt, count, **options)
    return drive(batch)[0]


def ids(tokens: list[GeneratedToken]) -> list[int]:
    return [token.token_id for token in tokens]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_batch_of_one_is_generate(open_tiny: OpenTiny, variant: str) -> None:
    session, prompt = open_tiny(variant), text(1, 40)[0]
    options: dict[str, Any] = {"temperature": 1.0, "seed": 3, "logprobs": 2}
    expected = list(session.generate(prompt, 12, **options))
    batch = Batch(session)
    assert batch.add(prompt, 12, **options) == 0
    assert drive(batch)[0] == expected


@pytest.mark.parametrize("variant", VARIANTS)
def test_ragged_rows_give_what_single_runs_give(open_tiny: OpenTiny, variant: str) -> None:
    one, many = open_tiny(variant), open_tiny(variant, batch_size=4)
    lengths = [1, 16, 17, 50, 33, 5]
    counts = [10, 3, 18, 6, 1, 12]
    prompts = [text(1, n, seed=n)[0] for n in lengths]
    expected = [ids(alone(one, p, n)) for p, n in zip(prompts, counts, strict=True)]
    batch, waiting, given = Batch(many, chunk=CHUNK), list(range(len(prompts))), {}
    numbers: dict[int, int] = {}
    while waiting or batch.active:
        while waiting and batch.free_rows:
            place = waiting.pop(0)
            numbers[batch.add(prompts[place], counts[place])] = place
        for request, token in batch.step():
            given.setdefault(numbers[request], []).append(token)
    assert [ids(given[place]) for place in range(len(prompts))] == expected
    assert batch.free_rows == 4 and batch.cache_bytes == 0
    assert many.lengths.tolist() == [0] * 4


class CountingGraph(ReferenceGraph):
    """Notes the input shape of each run."""

    calls: list[tuple[int, ...]] = []  # noqa: RUF012 - of all, and emptied by the test

    def run_with_iobinding(self, binding: Any, options: Any = None) -> None:
        self.calls.append(tuple(binding.inputs["input_ids"].shape()))
        super().run_with_iobinding(binding, options)


def test_a_call_computes_no_rows_that_it_need_not(
    tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_model, "open_graph", CountingGraph)
    with Session(tiny_folder(), batch_size=6) as session:
        batch = Batch(session, chunk=8)
        for row in range(5):
            batch.add(text(1, 12, seed=row)[0], 50)
        CountingGraph.calls.clear()
        while len([1 for _ in batch.step()]) < 5:
            pass
        prefills = [shape for shape in CountingGraph.calls if shape[1] > 1]
        assert set(prefills) == {(1, 8), (1, 4)}, "a prompt is read on its row alone"
        decodes = [shape for shape in CountingGraph.calls if shape[1] == 1]
        assert decodes == [(1, 1)] * 2 + [(2, 1)] * 2 + [(3, 1)] * 2 + [(4, 1)] * 2 + [(5, 1)]
        for request in (0, 1, 4):
            batch.remove(request)
        CountingGraph.calls.clear()
        batch.step()
        assert CountingGraph.calls == [(2, 1)], "rows 2 and 3"


def test_prompts_and_decode_steps_take_turns(open_tiny: OpenTiny) -> None:
    session = open_tiny("exact", batch_size=2)
    batch = Batch(session, chunk=4)
    first = batch.add([1, 2], 40)
    assert [token.request for token in batch.step()] == [first]
    second = batch.add(text(1, 20)[0], 5)
    seen = [[token.request for token in batch.step()] for _ in range(10)]
    assert seen == [[first], []] * 4 + [[first], [second]]


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_requests_that_come_and_go_do_not_disturb_the_others(
    ort_library: Path, tiny_folder: Callable[..., Path], variant: str, data: st.DataObject
) -> None:
    """Any order of add, step and remove; what a removed request gave is a beginning of its run."""
    folder = tiny_folder(variant)
    given: dict[int, list[int]] = {}
    requests: dict[int, tuple[np.ndarray, int]] = {}
    removed: set[int] = set()
    with Session(folder, batch_size=3, threads=1) as session:
        batch = Batch(session, chunk=CHUNK)
        for action in data.draw(st.lists(st.sampled_from("aassssr"), min_size=5, max_size=40)):
            if action == "a" and batch.free_rows:
                length = data.draw(st.integers(1, 60))
                count = data.draw(st.integers(1, 30))
                prompt = text(1, length, seed=len(requests))[0]
                requests[batch.add(prompt, count)] = (prompt, count)
            elif action == "r" and batch.active:
                gone = data.draw(st.sampled_from(batch.active))
                batch.remove(gone)
                removed.add(gone)
            else:
                for request, token in batch.step():
                    given.setdefault(request, []).append(token.token_id)
        for request, tokens in drive(batch).items():
            given.setdefault(request, []).extend(ids(tokens))
    with Session(folder, threads=1) as session:
        for request, (prompt, count) in requests.items():
            expected = ids(alone(session, prompt, count))
            found = given.get(request, [])
            assert found == (expected[: len(found)] if request in removed else expected)


def test_a_row_ends_alone(open_tiny: OpenTiny) -> None:
    session = open_tiny("exact", batch_size=3, max_sequence_length=48)
    batch = Batch(session)
    plain = alone(open_tiny("exact"), [5], 30)
    stop = plain[4].token_id
    a = batch.add([5], 30, stop_token_ids=[stop])
    b = batch.add([5], 7)
    c = batch.add(text(1, 40)[0], 1000)  # until the cache is full
    given = drive(batch)
    place = ids(plain).index(stop)
    assert ids(given[a]) == ids(plain)[: place + 1] and given[a][-1].finish_reason == "stop"
    assert ids(given[b]) == ids(plain)[:7] and given[b][-1].finish_reason == "length"
    assert len(given[c]) == 48 - 40 + 1 and given[c][-1].finish_reason == "length"
    assert all(token.finish_reason is None for tokens in given.values() for token in tokens[:-1])


def test_a_full_batch_says_so(open_tiny: OpenTiny) -> None:
    batch = Batch(open_tiny("exact", batch_size=2))
    assert (batch.free_rows, batch.active, batch.step()) == (2, (), [])
    first, second = batch.add([1], 5), batch.add([2], 5)
    with pytest.raises(BatchFullError, match="all 2 rows are taken"):
        batch.add([3], 5)
    batch.remove(first)
    assert batch.active == (second,) and batch.free_rows == 1
    third = batch.add([3], 5)
    assert set(drive(batch)) == {second, third}
    batch.remove(first)  # it has ended already
    with pytest.raises(SessionError, match=r"request is 3; possible here: 0\.\.2"):
        batch.remove(3)


def test_what_is_wrong_is_said_before_a_row_is_taken(open_tiny: OpenTiny) -> None:
    batch = Batch(open_tiny("exact", batch_size=1, max_sequence_length=32))
    with pytest.raises(CapacityError, match="33 more do not fit"):
        batch.add([1] * 33, 5)
    with pytest.raises(SessionError, match="prompt is empty"):
        batch.add([], 5)
    with pytest.raises(SessionError, match="min_p is 2"):
        batch.add([1], 5, min_p=2.0)
    with pytest.raises(SessionError, match="chunk is 0"):
        Batch(batch.session, chunk=0)
    assert batch.free_rows == 1


def test_a_session_that_is_used_for_something_else_is_noticed(open_tiny: OpenTiny) -> None:
    session = open_tiny("exact", batch_size=2)
    batch = Batch(session)
    batch.add([1, 2, 3], 5)
    batch.step()
    session.rows(0).forward([[7]])
    with pytest.raises(SessionError, match="row 0 holds 4 tokens, request 0 put 3 there"):
        batch.step()


def test_one_request_with_broken_logits_ends_alone(
    open_tiny: OpenTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_tiny("exact", batch_size=2)
    batch = Batch(session)
    broken, sound = batch.add([1], 5), batch.add([2], 5)
    batch.step(), batch.step(), batch.step()
    forward = type(session.rows(0)).forward

    def spoilt(self: Any, *given: Any, **options: Any) -> Any:
        logits = forward(self, *given, **options)
        logits[0] = np.nan
        return logits

    with monkeypatch.context() as patch:
        patch.setattr(type(session.rows(0)), "forward", spoilt)
        first, second = batch.step()
    assert first.request == broken and first.token.finish_reason == "error"
    assert first.token.token_id == -1 and second.request == sound
    assert batch.active == (sound,) and ids(drive(batch)[sound])


def test_bytes_follow_the_tokens(open_tiny: OpenTiny) -> None:
    session = open_tiny("exact", batch_size=2)
    batch = Batch(session, chunk=8)
    assert batch.cache_bytes == 0
    request = batch.add(text(1, 20)[0], 5)
    token_bytes = session.cache_bytes // 2 // session.capacity
    seen = []
    for _ in range(4):
        batch.step()
        seen.append(batch.cache_bytes // token_bytes)
    assert seen == [8, 16, 20, 21]
    batch.remove(request)
    assert batch.cache_bytes == 0


def test_progress_and_numbers_of_numpy(open_tiny: OpenTiny) -> None:
    read: list[int] = []
    batch = Batch(open_tiny("exact"), chunk=8)
    batch.add(np.arange(20) % VOCABULARY, np.int64(2), progress=read.append)
    assert len(drive(batch)[0]) == 2 and read == [8, 8, 4]
