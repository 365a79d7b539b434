"""Eviction where the state lies on a device, that is faked: the same tokens, and few copies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicache.exporter.sizes import cache_size
from minicache.runtime.batch import Batch
from minicache.runtime.session import Session
from tests.runtime.eviction.device_walk import (
    EXACT_H2O,
    MODELS,
    SLERP_H2O,
    OpenDevice,
    Pair,
    poison,
    walk,
)
from tests.runtime.fake_tensorrt import FakeTensorrt
from tests.runtime.session_text import text
from tests.runtime.tiny_model import MAX_LENGTH


@pytest.mark.parametrize(("variant", "model"), MODELS)
def test_a_device_session_equals_one_on_the_host(
    open_pair: Pair, tmp_path: Path, variant: str, model: dict[str, Any]
) -> None:
    """Logits and state, whatever the host's copy of the state holds in between."""
    session, host = open_pair(variant, model)
    mine = walk(session, tmp_path, spoil=True)
    for one, other in zip(mine, walk(host, tmp_path, spoil=False), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_row_that_is_full_is_cut(open_pair: Pair) -> None:
    """Fewer slots than the prompt has tokens: a policy that waits for the end of it must choose."""
    ids, found = text(2, 150), []
    pair = open_pair("exact", {"evict": "snapkv:60"}, cache_tokens=96)
    for session in pair:
        found.append(session.prefill(ids, [150, 70], chunk=25))
        poison(pair[0])
        found.append(session.forward(ids[:, :1]))
        assert session.lengths.tolist() == [151, 71]
    np.testing.assert_array_equal(found[0], found[2])
    np.testing.assert_array_equal(found[1], found[3])


@pytest.mark.parametrize(("variant", "model"), [EXACT_H2O, SLERP_H2O, MODELS[2]])
def test_a_batch_gives_the_same_tokens(
    open_pair: Pair, variant: str, model: dict[str, Any]
) -> None:
    """Requests come and go on rows that evict on their own."""
    found: list[list[tuple[int, int]]] = []
    for session in open_pair(variant, model):
        batch = Batch(session, chunk=30)
        found.append([])
        for length in (110, 90):
            batch.add(text(length=length, seed=length)[0].tolist(), 30)
        third = False
        while batch.active:
            found[-1] += [(request, token.token_id) for request, token in batch.step()]
            if not third and len(batch.active) < 2:
                batch.add(text(length=100, seed=3)[0].tolist(), 10)
                third = True
    assert found[0] == found[1]
    assert len(found[0]) == 70


def test_the_state_stays_where_it_is(open_device: OpenDevice) -> None:
    """Recorded steps, and contexts that are bound once, go on reading the same addresses."""
    session = open_device(*EXACT_H2O)
    session.forward(text(2, 20))
    before = session.state_pointers()
    for at in range(20, 140, 20):
        session.forward(text(2, 160)[:, at : at + 20])
    assert session._cache.arrays["past_minicache.0.evicted"][0, -1] > 0
    assert session.state_pointers() == before
    assert all(one == other for one, other in before.values())


def test_what_going_back_empties_is_empty_on_the_device(open_device: OpenDevice) -> None:
    """All tokens of one row taken back: its table is zero there, and the other row's is not."""
    session = open_device(*EXACT_H2O)
    for at in range(0, 140, 20):
        session.forward(text(2, 160)[:, at : at + 20])
    session.rewind([140, 0])
    poison(session)
    table = session.cache_tensors()["past_minicache.0.evicted"][:, -1]
    assert table[0] == 0 < table[1]


def test_a_cut_prompt_keeps_its_memory_on_a_device(open_pair: Pair) -> None:
    """What an export says of a size is what the device holds: all of it, at any time."""
    session, host = open_pair("exact", {"evict": "snapkv:60"})
    sizes = [cache_size(each.manifest, MAX_LENGTH, 2).resident for each in (session, host)]
    assert session.cache_bytes == sizes[0] == host.cache_bytes
    longer = [cache_size(each.manifest, 10 * MAX_LENGTH).resident for each in (session, host)]
    assert longer[0] > 9 * longer[1]


def test_prefill_brings_what_engine_and_room_take(
    engine_folder: Callable[..., Path], fake_trt: FakeTensorrt
) -> None:
    """The smaller of both, as both bound a call."""
    folder = engine_folder("exact", tokens=32, evict="snapkv:60")
    for slots, longest in ((144, 32), (112, 20)):
        with Session(folder, cache_tokens=slots) as session:
            assert session.longest_call == longest
            session.prefill(text(1, 150))
