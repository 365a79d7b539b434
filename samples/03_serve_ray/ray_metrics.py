"""An engine's counts as Ray's metrics: every machine of a cluster exports those of its replicas.

``/metrics`` is answered by one replica, whichever the router takes; a cluster is watched through
Ray, which tells Prometheus where its machines export (``metrics_export_port``).
"""

from __future__ import annotations

from meters import Meters
from metrics import EngineCollector
from ray.serve import metrics as ray_metrics


class RayMetrics:
    """Gauges and counters of one replica; Ray adds labels of deployment and replica.

    Args:
        meters: counts of the engine.
    """

    def __init__(self, meters: Meters) -> None:
        self._collector = EngineCollector(meters, {})
        self._gauges: dict[str, ray_metrics.Gauge] = {}
        self._counters: dict[str, ray_metrics.Counter] = {}
        self._said: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def push(self) -> None:
        """Hands over what has changed; histograms stay with ``/metrics``."""
        for family in self._collector.collect():
            for sample in family.samples:
                if family.type == "gauge":
                    self._gauge(sample.name, family.documentation).set(sample.value)
                elif family.type == "counter":
                    self._count(sample.name, family.documentation, sample.labels, sample.value)

    def _gauge(self, name: str, what: str) -> ray_metrics.Gauge:
        if name not in self._gauges:
            self._gauges[name] = ray_metrics.Gauge(name, what)
        return self._gauges[name]

    def _count(self, name: str, what: str, labels: dict[str, str], value: float) -> None:
        if name not in self._counters:
            self._counters[name] = ray_metrics.Counter(name, what, tag_keys=tuple(labels))
        key = name, tuple(labels.items())
        more = value - self._said.get(key, 0.0)
        if more > 0:
            self._counters[name].inc(more, tags=labels)
            self._said[key] = value
