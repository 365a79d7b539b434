"""Gathers a calibration's statistics from the activations of a text, in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.exporter.calibration.activation_capture import (
    ActivationCapture,
    Activations,
)
from minicache.exporter.calibration.calibration import CalibratedLayer
from minicache.exporter.calibration.moments import (
    JointMoments,
    affordable_span,
    head_moments,
    partners,
    squared_lengths,
    token_weights,
)
from minicache.exporter.calibration.rotation import rotate, segment_offset
from minicache.exporter.calibration.sample import TokenSample
from minicache.runtime.progress import Step

Array = npt.NDArray[Any]


class Gatherer:
    """Sums over the tokens of all documents; its attributes become the calibration's."""

    def __init__(
        self,
        layers: Sequence[CalibratedLayer],
        metrics: Sequence[Array],
        segment_length: int,
        sinks: int,
        max_group_size: int,
        notes: list[str],
    ) -> None:
        self.layers, self.metrics = layers, {"value": list(metrics)}
        self.segment_length, self.sinks = segment_length, sinks
        widths = [layer.num_kv_heads * layer.head_dim for layer in layers]
        span = affordable_span(widths, max_group_size)
        if span < max_group_size:
            notes.append(
                f"groups of at most {span} layers can be planned, not {max_group_size}: the joint "
                "moments of larger ones take too much memory"
            )
        rows = partners([layer.kind for layer in layers], span)
        self.moments = {kind: JointMoments(rows, widths) for kind in ("key", "value")}
        self.query_sums: list[Array] = []
        self.queries = 0
        self.means: dict[str, Array] = {}
        self.samples: dict[str, TokenSample] = {}

    def warm_up(
        self, capture: ActivationCapture, documents: Sequence[Sequence[int]], step: Step
    ) -> None:
        """First query moments, and the mean squared lengths that token weights are relative to."""
        kept = []
        self._forget_queries()
        for chunk in capture.run(documents):
            self._add_queries(chunk)
            key, value = self._kept(chunk)
            kept.append((key, value))
            step.advance(chunk.tokens)
        self.metrics["key"] = [total / self.queries for total in self.query_sums]
        widest = max(layer.num_kv_heads for layer in self.layers)
        for index, kind in enumerate(("key", "value")):
            means = np.zeros((len(self.layers), widest))
            for layer, metric in enumerate(self.metrics[kind]):
                vectors = np.concatenate([chunk[index][layer] for chunk in kept])
                lengths = squared_lengths(vectors, metric)
                means[layer, : lengths.shape[1]] = lengths.mean(axis=0)
            self.means[kind] = means

    def gather(
        self, capture: ActivationCapture, documents: Sequence[Sequence[int]], step: Step
    ) -> None:
        """Everything that the calibration holds."""
        self._forget_queries()
        total = sum(max(len(document) - self.sinks, 0) for document in documents)
        shapes = [(layer.num_kv_heads, layer.head_dim) for layer in self.layers]
        self.samples = {kind: TokenSample(shapes, total) for kind in ("key", "value")}
        for chunk in capture.run(documents):
            self._add_queries(chunk)
            key, value = self._kept(chunk)
            for kind, vectors in (("key", key), ("value", value)):
                weights = token_weights(vectors, self.metrics[kind], self.means[kind])
                self.moments[kind].add(vectors, weights)
                self.samples[kind].add(vectors)
            step.advance(chunk.tokens)

    def _forget_queries(self) -> None:
        shapes = [(layer.num_kv_heads, layer.head_dim, layer.head_dim) for layer in self.layers]
        self.query_sums, self.queries = [np.zeros(shape) for shape in shapes], 0

    def _add_queries(self, chunk: Activations) -> None:
        first = max(self.sinks - chunk.start, 0)
        for layer, query in enumerate(chunk.query):
            heads = self.layers[layer].num_kv_heads
            self.query_sums[layer] += head_moments(query[first:], heads)
        self.queries += max(chunk.tokens - first, 0)

    def _kept(self, chunk: Activations) -> tuple[list[Array], list[Array]]:
        """Keys (segment-relative) and values without sinks."""
        first = max(self.sinks - chunk.start, 0)
        positions = np.arange(chunk.start + first, chunk.start + chunk.tokens)
        offset = segment_offset(positions, self.segment_length)
        keys = [key[first:] for key in chunk.key]
        if offset.any():
            keys = [
                rotate(key, -offset[:, None], layer.rope)
                for key, layer in zip(keys, self.layers, strict=True)
            ]
        return keys, [value[first:] for value in chunk.value]
