"""Sessions of exports that evict: what they allocate, refuse, take back, keep and give away."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicache.runtime.batch import Batch
from minicache.runtime.errors import CapacityError, PackageError, SessionError
from minicache.runtime.eviction import HeldTokens, Streaming
from minicache.runtime.manifest import Manifest
from minicache.runtime.session import Session
from tests.runtime.conftest import OpenTiny
from tests.runtime.session_text import assert_close, assert_same, snapshot, text
from tests.runtime.tiny_model import SLACK

STREAM = {"evict": "streaming:2+60"}  # beside sinks, window and slack of the slerp model: 30 of it
MODELS: list[tuple[str, dict[str, Any]]] = [
    ("exact", STREAM),
    ("exact", {"evict": "h2o:62"}),
    ("slerp", STREAM),
    ("slerp", {"evict": "h2o:62", "retention": "minmax"}),
]


@pytest.mark.parametrize(("variant", "model"), MODELS)
def test_a_row_is_longer_than_its_cache(
    open_tiny: OpenTiny, variant: str, model: dict[str, Any]
) -> None:
    """Text of 160 tokens; no more than budget and spare are ever held, and the state says so."""
    session = open_tiny(variant, model=model, cache_tokens=160)
    ids = text(length=160)
    for start in range(0, 160, 8):
        session.forward(ids[:, start : start + 8])
        evicted = session.cache_tensors()["past_minicache.0.evicted"][0, -1]
        assert start + 8 - evicted <= 62 + 64
    assert session.lengths.tolist() == [160]
    assert evicted > 0 and evicted % 16 == 0
    with pytest.raises(CapacityError, match="holds 160 tokens"):
        session.forward([[1]])


@pytest.mark.parametrize(("variant", "model"), MODELS)
def test_going_back_after_an_eviction_equals_never_having_gone(
    open_tiny: OpenTiny, variant: str, model: dict[str, Any]
) -> None:
    """A call evicts; tokens behind it are taken back, and others take their places."""
    session, fresh = (open_tiny(variant, model=model) for _ in range(2))
    ids, other = text(length=150), text(length=150, seed=1)
    for each in (session, fresh):
        each.forward(ids[:, :120])
        each.forward(ids[:, 120:126])  # evicts
        each.forward(ids[:, 126:130])
    before = session.cache_tensors()["past_minicache.0.evicted"].copy()
    assert before[0, -1] >= 48
    session.forward(other[:, :SLACK])
    session.rewind(SLACK)
    assert_same(
        {"evicted": before}, {"evicted": session.cache_tensors()["past_minicache.0.evicted"]}
    )
    for at in range(130, 134):
        result = session.forward(ids[:, at : at + 1])
        assert_close(result, fresh.forward(ids[:, at : at + 1]))
    assert session.retention_stats() == fresh.retention_stats()
    with pytest.raises(SessionError, match="cannot take back"):
        session.rewind(SLACK + 20)


@dataclasses.dataclass(frozen=True)
class Backwards(Streaming):
    """Values old tokens more than new ones, as no sensible policy does."""

    def worth(self, tokens: HeldTokens) -> np.ndarray:
        return -np.arange(tokens.count)


def test_what_going_back_needs_is_never_evicted(open_tiny: OpenTiny) -> None:
    """Whatever the policy thinks of it; sinks likewise."""
    session, ids = open_tiny(model=STREAM), text(length=150)
    assert session._evictor is not None
    session._evictor.policy = Backwards(2, 60)
    session.forward(ids[:, :120])
    keys = session.cache_tensors()["past_minicache.0.exact_key"][0, 0].copy()
    expected = session.forward(ids[:, 120:128])
    after = session.cache_tensors()["past_minicache.0.exact_key"][0, 0]
    np.testing.assert_array_equal(after[:, 120 - 64 - SLACK : 120 - 64], keys[:, 120 - SLACK : 120])
    np.testing.assert_array_equal(after[:, : 120 - 64 - SLACK], keys[:, : 120 - 64 - SLACK])
    session.rewind(8)
    assert_close(session.forward(ids[:, 120:128]), expected)


@pytest.mark.parametrize(("variant", "model"), MODELS)
def test_an_emptied_row_has_evicted_nothing(
    open_tiny: OpenTiny, variant: str, model: dict[str, Any]
) -> None:
    """By reset, or by taking everything back."""
    session, fresh = (open_tiny(variant, model=model) for _ in range(2))
    ids = text(length=140)
    expected = fresh.forward(ids[:, :20])
    for empty in (session.reset, lambda: session.rewind(140)):
        for start in range(0, 140, 20):
            session.forward(ids[:, start : start + 20])
        assert session.cache_tensors()["past_minicache.0.evicted"][0, -1] > 0
        empty()
        assert session.cache_tensors()["past_minicache.0.evicted"].max() == 0
        assert_close(session.forward(ids[:, :20]), expected)
        session.reset()


def test_rows_evict_on_their_own(open_tiny: OpenTiny) -> None:
    """Ragged rows compute what each would compute alone."""
    session = open_tiny(model=STREAM, batch_size=2)
    alone = [open_tiny(model=STREAM) for _ in range(2)]
    ids = text(2, length=150)
    session.forward(ids[:, :130], [130, 40])
    alone[0].forward(ids[:1, :130])
    alone[1].forward(ids[1:, :40])
    for step in range(6):
        new = ids[:, 130 + step : 131 + step]
        result = session.forward(new)
        for row in (0, 1):
            assert_close(result[row : row + 1], alone[row].forward(new[row : row + 1]))
    evicted = session.cache_tensors()["past_minicache.0.evicted"][:, -1]
    assert evicted[0] > 0 == evicted[1]


@pytest.mark.parametrize(("variant", "model"), MODELS)
def test_a_prefix_takes_what_was_evicted_with_it(
    open_tiny: OpenTiny, variant: str, model: dict[str, Any], tmp_path: Path
) -> None:
    """A saved row goes on in another session as it would have gone on at home."""
    session, other = open_tiny(variant, model=model), open_tiny(variant, model=model)
    ids = text(length=150)
    for start in range(0, 140, 20):
        session.forward(ids[:, start : start + 20])
    session.save(tmp_path / "row.safetensors")
    other.load(tmp_path / "row.safetensors")
    assert_same(
        {"lengths": session.lengths, "evicted": snapshot(session)["past_minicache.0.evicted"]},
        {"lengths": other.lengths, "evicted": snapshot(other)["past_minicache.0.evicted"]},
    )
    assert_close(other.forward(ids[:, 140:150]), session.forward(ids[:, 140:150]))


def test_a_batch_cuts_prompts_at_their_end(open_tiny: OpenTiny) -> None:
    """Requests on rows of one session give the tokens that ``generate`` gives."""
    session, alone = (open_tiny(model={"evict": "snapkv:60"}, batch_size=size) for size in (2, 1))
    prompts = [text(length=length, seed=length)[0].tolist() for length in (110, 90)]
    wanted = [[t.token_id for t in alone.generate(p, 12)] for p in prompts]
    batch = Batch(session, chunk=50)
    numbers = [batch.add(prompt, 12) for prompt in prompts]
    found: dict[int, list[int]] = {number: [] for number in numbers}
    cut = 0
    while batch.active:
        for request, token in batch.step():
            found[request].append(token.token_id)
        cut = max(cut, int(session.cache_tensors()["past_minicache.0.evicted"].max()))
    assert list(found.values()) == wanted
    assert cut == 64


def test_snapkv_gives_memory_back(tiny_folder: Callable[..., Path]) -> None:
    """Slots behind those that are left are zero pages again; nothing reads them."""
    from minicache.runtime.cache import Cache

    folder = tiny_folder(evict="snapkv:60")
    manifest = dataclasses.replace(Manifest.load(folder), max_sequence_length=4096)
    cache = Cache(manifest, 2, 4096)
    for array in cache.arrays.values():
        array[:] = 1
    cache.release_slots(0, 1, 64)
    keys = cache.arrays["past_minicache.0.exact_key"]
    assert (keys[0] == 1).all() and (keys[1, :, :, :64] == 1).all()
    assert (keys[1, :, :, 128:4000] == 0).all()
    assert (cache.arrays["past_minicache.1.exact_key"] == 1).all()


def test_a_call_must_fit_beside_what_stays(open_tiny: OpenTiny) -> None:
    """The sentence says how many tokens a call may bring; prefill brings no more by itself."""
    session = open_tiny(model={"evict": "snapkv:60"}, cache_tokens=96)
    ids = text(length=150)
    session.forward(ids[:, :60])
    with pytest.raises(CapacityError, match="give at most 4 per call"):
        session.forward(ids[:, 60:130])
    assert session.lengths.tolist() == [60]
    session.prefill(ids[:, 60:150])
    assert session.lengths.tolist() == [150]


@pytest.mark.parametrize(
    ("model", "tokens", "words"),
    [
        ({}, 64, "this export evicts nothing"),
        ({"evict": "snapkv:60"}, 80, "snapkv:60 needs 96 or more"),
        ({"evict": "snapkv:60"}, 0, "cache_tokens is 0"),
        ({"evict": "snapkv:60"}, "many", "cache_tokens is 'many'"),
    ],
)
def test_impossible_sizes_are_refused(
    open_tiny: OpenTiny, model: dict[str, Any], tokens: Any, words: str
) -> None:
    with pytest.raises(SessionError, match=words):
        open_tiny(model=model, cache_tokens=tokens)


def test_a_side_buffer_larger_than_the_budget_is_refused(open_tiny: OpenTiny) -> None:
    """Tokens of ``budget`` retention are not evicted: 52 of them, and what stays beside them."""
    model = {"evict": "h2o:62", "retention": "budget"}
    with pytest.raises(SessionError, match="keeps 62 tokens, but 52 in the side buffer"):
        open_tiny("slerp", model=model)


@pytest.mark.parametrize(
    "eviction",
    [
        {"policy": "streaming:4+1024"},
        {"policy": 3, "tiled": True, "segment_lengths": {}},
        {"policy": "best", "tiled": True, "segment_lengths": {}},
        {"policy": "h2o:60", "tiled": 1, "segment_lengths": {}},
        {"policy": "h2o:60", "tiled": True, "segment_lengths": {"0": 24}},
        {"policy": "h2o:60", "tiled": True, "segment_lengths": [0]},
    ],
)
def test_a_damaged_manifest_is_refused(
    tiny_folder: Callable[..., Path], eviction: dict[str, Any], tmp_path: Path
) -> None:
    for file in tiny_folder(evict="h2o:60").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    content = json.loads((tmp_path / "minicache.json").read_text())
    (tmp_path / "minicache.json").write_text(json.dumps({**content, "eviction": eviction}))
    with pytest.raises(PackageError, match="eviction"):
        Session(tmp_path)
