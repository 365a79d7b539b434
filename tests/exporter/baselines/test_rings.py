"""Simulation on a model with layers of sliding-window attention: their rings stay exact."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicache.exporter.baselines.cache_codec import CacheCodec
from minicache.exporter.baselines.cache_shape import CacheShape
from minicache.exporter.baselines.exact_cache import ExactCache, can_simulate, coded_layers
from minicache.exporter.baselines.exact_vectors import exact_vectors
from minicache.exporter.baselines.prefill_snapshot import PrefillSnapshot
from minicache.exporter.baselines.simulated_cache import SimulatedCache
from minicache.runtime import Session, open_model
from minicache.runtime.errors import SessionError
from tests.exporter.scaled_codec import Scaled
from tests.runtime.reference_graph import ReferenceGraph
from tests.runtime.tiny_model import HEAD_DIM, KV_HEADS, SLACK, VOCABULARY, write_tiny_model

LOCAL = 8
RING = {"local_window_size": LOCAL, "ring_slots": LOCAL + SLACK}
# The prefill is longer than the ring, a chunk than the slack, and all chunks overwrite the ring.
PREFILL, LENGTH, CHUNK = 30, 60, 14


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """Layer 0 keeps a ring, layer 1 everything."""
    monkeypatch.setattr(open_model, "open_graph", ReferenceGraph)
    folder = write_tiny_model(tmp_path / "model", first_layer=RING)
    with Session(folder, max_sequence_length=64) as opened:
        yield opened


@pytest.fixture
def cache(session: Session) -> ExactCache:
    return ExactCache(session)


@pytest.fixture
def ids() -> np.ndarray:
    return np.random.default_rng(0).integers(0, VOCABULARY, LENGTH)


def calls(forward: Any, ids: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Logits of the prefill's last token, given, and of chunks that are longer than the slack."""
    starts = range(PREFILL, LENGTH, CHUNK)
    return np.concatenate([first, *(forward(ids[None, s : s + CHUNK])[0] for s in starts)])


def test_the_cache_tells_rings_from_what_is_coded(cache: ExactCache) -> None:
    assert coded_layers(cache.session.manifest) == [1]
    assert [key.shape for key in cache.keys] == [(KV_HEADS, 64, HEAD_DIM)]
    assert [ring.shape for ring in cache.rings] == [(KV_HEADS, LOCAL + SLACK, HEAD_DIM)] * 2
    assert can_simulate(cache.session.manifest)
    shape = CacheShape.of(cache.session.manifest)
    assert (shape.layers, shape.num_kv_heads, shape.head_dim) == (1, KV_HEADS, HEAD_DIM)
    assert shape.ring_bytes == sum(ring.nbytes for ring in cache.rings)


@pytest.mark.parametrize("codec", [None, Scaled(1.0), Scaled(1.0, block=3)])
def test_nothing_coded_gives_exactly_the_exact_models_logits(
    cache: ExactCache, ids: np.ndarray, codec: CacheCodec | None
) -> None:
    """Again and again from one snapshot, though each run overwrote the rings."""
    cache.session.reset()
    expected = calls(cache.session.forward, ids, cache.session.prefill(ids[:PREFILL], chunk=99))
    with pytest.raises(SessionError, match="cannot take back"):
        cache.session.rewind(LENGTH - PREFILL)  # the session's own way back is too short
    snapshot = PrefillSnapshot.take(cache, ids[:PREFILL])
    for _ in range(3):
        model = SimulatedCache(cache, codec)
        np.testing.assert_array_equal(calls(model.forward, ids, model.start(snapshot)), expected)


def test_a_codec_changes_full_layers_only(cache: ExactCache, ids: np.ndarray) -> None:
    snapshot = PrefillSnapshot.take(cache, ids[:PREFILL])
    exact = SimulatedCache(cache, None)
    plain = calls(exact.forward, ids, exact.start(snapshot))
    model = SimulatedCache(cache, Scaled(0.5))
    model.start(snapshot)
    for ring, kept in zip(cache.rings, snapshot.rings, strict=True):
        np.testing.assert_array_equal(ring, kept)
    coded = slice(2, PREFILL - 5)
    np.testing.assert_array_equal(cache.keys[0][:, coded], 0.5 * snapshot.keys[0][:, coded])
    found = calls(model.forward, ids, model.start(snapshot))
    assert np.abs(found[1:] - plain[1:]).max() > 1e-3
    # After a codec, the exact model is itself again.
    np.testing.assert_array_equal(calls(exact.forward, ids, exact.start(snapshot)), plain)


def test_after_a_restart_the_session_takes_back_what_its_ring_holds(
    cache: ExactCache, ids: np.ndarray
) -> None:
    """Counted from the snapshot, not from how long the session had been."""
    snapshot = PrefillSnapshot.take(cache, ids[:PREFILL])
    cache.session.forward(ids[None, PREFILL:LENGTH])
    snapshot.restore(cache)
    cache.session.rewind(SLACK)
    found = cache.session.forward(ids[None, PREFILL - SLACK : PREFILL])[0, -1:]
    np.testing.assert_allclose(found, snapshot.logits, rtol=1e-5, atol=1e-5)
    with pytest.raises(SessionError, match="cannot take back"):
        cache.session.rewind(SLACK + 1)


def test_scales_are_fitted_to_full_layers(cache: ExactCache, ids: np.ndarray) -> None:
    keys, values = exact_vectors(cache, [ids[:40].tolist()], sinks=2)
    assert len(keys) == len(values) == 1 and keys[0].shape == (38, KV_HEADS, HEAD_DIM)
