"""An engine's counts as Prometheus metrics, for ``/metrics``.

Written by ``prometheus_client`` when somebody asks, from the counts as they are: nothing has to be
kept up to date.
"""

from __future__ import annotations

from collections.abc import Iterator

from meters import Meters
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class EngineCollector(Collector):
    """The metrics of one engine.

    Args:
        meters: its counts.
        labels: put on every metric, such as the replica.
    """

    def __init__(self, meters: Meters, labels: dict[str, str]) -> None:
        self._meters, self._names, self._values = meters, list(labels), list(labels.values())

    def collect(self) -> Iterator[Metric]:
        """Yields every metric."""
        m = self._meters
        yield self._gauge("tokens_per_second", "Tokens of the last 10 s.", m.tokens_per_second())
        yield self._gauge("requests_waiting", "Requests that wait for a row.", m.waiting)
        yield self._gauge("requests_waiting_limit", "Requests that may wait.", m.waiting_limit)
        yield self._gauge("rows", "Rows of the batch.", m.rows)
        yield self._gauge("rows_active", "Rows in use.", m.active)
        yield self._gauge("kv_bytes_used", "KV cache of the tokens in it.", m.kv_used)
        yield self._gauge("kv_bytes_reserved", "What it may grow to.", m.kv_reserved)
        free = m.kv_bytes - m.kv_reserved
        yield self._gauge("kv_bytes_free", "Budget that is not reserved.", free)
        yield self._counter("prompt_tokens", "Prompt tokens of admitted requests.", m.prompt_tokens)
        yield self._counter("generated_tokens", "Tokens generated.", m.tokens)
        yield self._counter("steps", "Calls of the model.", m.steps)
        yield self._counter("step_seconds", "Time in calls of the model.", m.step_seconds)
        yield self._outcomes()
        for name, what, histogram in (
            ("time_to_first_token_seconds", "Arrival to first token.", m.first_token),
            ("inter_token_seconds", "One token of a request to its next.", m.between_tokens),
        ):
            family = HistogramMetricFamily(f"minicache_{name}", what, labels=self._names)
            family.add_metric(self._values, histogram.cumulative(), histogram.total)
            yield family

    def _gauge(self, name: str, what: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"minicache_{name}", what, labels=self._names)
        family.add_metric(self._values, value)
        return family

    def _counter(self, name: str, what: str, value: float) -> CounterMetricFamily:
        family = CounterMetricFamily(f"minicache_{name}", what, labels=self._names)
        family.add_metric(self._values, value)
        return family

    def _outcomes(self) -> CounterMetricFamily:
        names = [*self._names, "outcome"]
        what = "Requests by how they ended."
        family = CounterMetricFamily("minicache_requests", what, labels=names)
        for outcome, count in sorted(self._meters.outcomes.items()):
            family.add_metric([*self._values, outcome], count)
        return family


def metrics_text(meters: Meters, labels: dict[str, str]) -> bytes:
    """The metrics of an engine and its process, in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(EngineCollector(meters, labels))
    ProcessCollector(registry=registry)  # of the replica: CPU seconds, resident memory, open files
    return generate_latest(registry)
