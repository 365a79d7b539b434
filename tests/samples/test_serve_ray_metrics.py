"""Counts that samples/03_serve_ray hands to Ray; Ray's side is replaced."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from tests.samples.serving import sample_modules


class FakeMetric:
    """Remembers what it was told, by labels."""

    def __init__(self, name: str, description: str, tag_keys: tuple[str, ...] = ()) -> None:
        self.values: dict[tuple[str, ...], float] = {}
        self._keys = tag_keys
        MADE[name] = self

    def set(self, value: float) -> None:
        self.values[()] = value

    def inc(self, more: float, tags: dict[str, str]) -> None:
        assert more > 0 and tuple(tags) == self._keys
        key = tuple(tags.values())
        self.values[key] = self.values.get(key, 0.0) + more


MADE: dict[str, FakeMetric] = {}


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The sample's modules beside a Ray that only has metrics."""
    for name in ("fastapi", "prometheus_client"):
        pytest.importorskip(name, reason=f"the serving sample needs {name}")
    MADE.clear()
    fakes = {name: ModuleType(name) for name in ("ray", "ray.serve", "ray.serve.metrics")}
    fakes["ray.serve"].metrics = fakes["ray.serve.metrics"]  # type: ignore[attr-defined]
    for kind in ("Gauge", "Counter"):
        setattr(fakes["ray.serve.metrics"], kind, FakeMetric)
    for name, fake in fakes.items():
        monkeypatch.setitem(sys.modules, name, fake)
    with sample_modules("ray_metrics") as found:
        yield found


def test_gauges_are_set_and_counters_grow_by_what_is_new(modules: Any) -> None:
    meters = modules.meters.Meters(kv_bytes=1000, rows=4, waiting_limit=8)
    told = modules.ray_metrics.RayMetrics(meters)
    told.push()
    assert MADE["minicache_rows"].values == {(): 4}
    assert MADE["minicache_generated_tokens_total"].values == {}, "nothing yet"
    for _ in range(2):
        meters.step(0.5, 3)
        meters.finished("length")
        meters.active, meters.kv_reserved = 2, 600
        told.push()
        told.push()  # without news nothing grows
    meters.finished("failed")
    told.push()
    assert MADE["minicache_generated_tokens_total"].values == {(): 6}
    assert MADE["minicache_step_seconds_total"].values == {(): 1.0}
    assert MADE["minicache_requests_total"].values == {("length",): 2, ("failed",): 1}
    assert MADE["minicache_kv_bytes_free"].values == {(): 400}
    assert MADE["minicache_rows_active"].values == {(): 2}
    assert not any("inter_token" in name for name in MADE), "histograms stay with /metrics"
