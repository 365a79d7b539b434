"""A simulated cache: the plain session when nothing is coded, and nothing but codes rewritten."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicache.exporter.baselines.cache_codec import CacheCodec
from minicache.exporter.baselines.exact_cache import ExactCache
from minicache.exporter.baselines.exact_vectors import exact_vectors
from minicache.exporter.baselines.prefill_snapshot import PrefillSnapshot
from minicache.exporter.baselines.simulated_cache import SimulatedCache
from minicache.runtime import open_model
from minicache.runtime.errors import SessionError, TextError
from minicache.runtime.session import Session
from tests.exporter.scaled_codec import Scaled
from tests.runtime.reference_graph import ReferenceGraph
from tests.runtime.tiny_model import HEAD_DIM, KV_HEADS, LAYERS, VOCABULARY, write_tiny_model

PREFILL, LENGTH = 20, 40


@pytest.fixture
def make_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Session]]:
    monkeypatch.setattr(open_model, "open_graph", ReferenceGraph)
    sessions: list[Session] = []

    def make(variant: str = "exact", batch_size: int = 1, **attributes: Any) -> Session:
        folder = write_tiny_model(tmp_path / f"model{len(sessions)}", variant, **attributes)
        sessions.append(Session(folder, batch_size=batch_size, max_sequence_length=64))
        return sessions[-1]

    yield make
    for session in sessions:
        session.close()


@pytest.fixture
def cache(make_session: Callable[..., Session]) -> ExactCache:
    return ExactCache(make_session())


@pytest.fixture
def ids() -> np.ndarray:
    return np.random.default_rng(0).integers(0, VOCABULARY, LENGTH)


def read(model: SimulatedCache, ids: np.ndarray, first: np.ndarray, chunk: int = 4) -> np.ndarray:
    """Logits of the last token of the prefill, given, and of all that follow."""
    starts = range(PREFILL, LENGTH, chunk)
    return np.concatenate([first, *(model.forward(ids[None, s : s + chunk])[0] for s in starts)])


@pytest.mark.parametrize("codec", [None, Scaled(1.0, block=3)])
def test_an_identity_codec_equals_the_plain_session(
    cache: ExactCache, ids: np.ndarray, codec: CacheCodec | None
) -> None:
    model = SimulatedCache(cache, codec)
    found = read(model, ids, model.prefill(ids[:PREFILL]))
    cache.session.reset()
    expected = [cache.session.prefill(ids[:PREFILL])]
    for start in range(PREFILL, LENGTH, 4):
        expected.append(cache.session.forward(ids[None, start : start + 4])[0])
    np.testing.assert_array_equal(found, np.concatenate(expected))


def test_only_coded_tokens_are_rewritten_and_only_once(cache: ExactCache, ids: np.ndarray) -> None:
    codec = Scaled(0.5, block=3)
    model = SimulatedCache(cache, codec)
    first = model.prefill(ids[:PREFILL])
    assert codec.coded_end(PREFILL) == 14
    coded = cache.read(0, PREFILL)
    SimulatedCache(cache, None).prefill(ids[:PREFILL])
    exact = cache.read(0, PREFILL)
    for found, plain in zip((*coded[0], *coded[1]), (*exact[0], *exact[1]), strict=True):
        np.testing.assert_array_equal(found[:, :2], plain[:, :2])
        np.testing.assert_array_equal(found[:, 14:], plain[:, 14:])
        np.testing.assert_array_equal(found[:, 2:14], 0.5 * plain[:, 2:14])
    model.prefill(ids[:PREFILL])
    read(model, ids, first)
    # A second coding of the same token would halve it again.
    np.testing.assert_array_equal(cache.read(2, 14)[0][0], 0.5 * exact[0][0][:, 2:14])
    assert not np.array_equal(cache.read(14, 15)[0][0], exact[0][0][:, 14:15])


def test_one_snapshot_serves_many_codecs(cache: ExactCache, ids: np.ndarray) -> None:
    alone = SimulatedCache(cache, Scaled(0.5, block=3))
    expected = read(alone, ids, alone.prefill(ids[:PREFILL]))
    snapshot = PrefillSnapshot.take(cache, ids[:PREFILL])
    for codec in (Scaled(0.1, block=3), None, Scaled(0.5, block=3)):
        model = SimulatedCache(cache, codec)
        found = read(model, ids, model.start(snapshot))
    np.testing.assert_array_equal(found, expected)
    # Also after the session read something else.
    cache.session.reset()
    cache.session.prefill(ids[::-1][:PREFILL].copy())
    np.testing.assert_array_equal(read(model, ids, model.start(snapshot)), expected)


def test_vectors_are_those_in_the_cache(cache: ExactCache, ids: np.ndarray) -> None:
    keys, values = exact_vectors(cache, [ids[:10].tolist(), [1], ids[10:30].tolist()], sinks=3)
    assert len(keys) == len(values) == LAYERS
    assert keys[0].shape == values[1].shape == (7 + 17, KV_HEADS, HEAD_DIM)
    np.testing.assert_array_equal(keys[1][7:], np.swapaxes(cache.read(3, 20)[0][1], 0, 1))
    with pytest.raises(TextError, match="longer than the 3 first tokens"):
        exact_vectors(cache, [[1, 2]], sinks=3)


def test_values_that_are_not_finite_are_refused(cache: ExactCache, ids: np.ndarray) -> None:
    with pytest.raises(SessionError, match="not finite"):
        SimulatedCache(cache, Scaled(float("nan"), block=3)).prefill(ids)


def test_sessions_without_plain_slots_are_refused(make_session: Callable[..., Session]) -> None:
    with pytest.raises(SessionError, match="has 'key_code'"):
        ExactCache(make_session("slerp"))
    with pytest.raises(SessionError, match=r"layers of full attention; .* has none"):
        ExactCache(make_session(local_window_size=8, ring_slots=20))
    with pytest.raises(SessionError, match="the session has 2"):
        ExactCache(make_session(batch_size=2))
