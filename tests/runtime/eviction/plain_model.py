"""The tiny exact model and its policies in plain loops: tokens are kept in lists, without slots."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from tests.runtime.tiny_model import HEAD_DIM, HEADS, KV_HEADS, LAYERS, SLACK

Array = np.ndarray
BLOCK = 16


@dataclass
class Kept:
    """A token that a layer still sees."""

    position: int
    key: Array
    value: Array
    mass: float = 0.0


# From the tokens of a layer, in order: how much each is worth.
Worth = Callable[[list[Kept]], list[float]]


@dataclass
class PlainModel:
    """Reads one text, and evicts.

    Args:
        folder: of the tiny model.
        observes: queries per call whose attention counts; -1: all.
    """

    folder: Path
    observes: int = 0
    layers: list[list[Kept]] = field(default_factory=lambda: [[] for _ in range(LAYERS)])
    length: int = 0

    def __post_init__(self) -> None:
        graph = onnx.load(self.folder / "model.onnx").graph
        self.weights = {w.name: numpy_helper.to_array(w).astype(float) for w in graph.initializer}

    def forward(self, tokens: list[int]) -> Array:
        """Logits [tokens, V] of new tokens."""
        w = self.weights
        places = range(self.length, self.length + len(tokens))
        x = np.stack(
            [w["embedding"][t] + w["positions"][p] for t, p in zip(tokens, places, strict=True)]
        )
        for number, kept in enumerate(self.layers):
            query, key, value = (x @ w[f"w{kind}_{number}"] for kind in "qkv")
            kept += [
                Kept(p, k.reshape(KV_HEADS, -1), v.reshape(KV_HEADS, -1))
                for p, k, v in zip(places, key, value, strict=True)
            ]
            mixed = np.zeros((len(tokens), HEADS * HEAD_DIM))
            for i, place in enumerate(places):
                counts = self.observes < 0 or len(tokens) - i <= self.observes
                mixed[i] = self._attend(query[i].reshape(HEADS, -1), kept, place, counts)
            x = x + mixed @ w[f"wo_{number}"]
        self.length += len(tokens)
        return np.asarray(x @ w["head"])

    @staticmethod
    def _attend(query: Array, kept: list[Kept], place: int, counts: bool) -> Array:
        seen = [token for token in kept if token.position <= place]
        out = []
        for h in range(HEADS):
            g = h * KV_HEADS // HEADS
            scores = [float(query[h] @ token.key[g]) / math.sqrt(HEAD_DIM) for token in seen]
            weights = [math.exp(score - max(scores)) for score in scores]
            total = sum(weights)
            for token, weight in zip(seen, weights, strict=True):
                token.mass += weight / total / HEADS if counts else 0.0
            parts = zip(seen, weights, strict=True)
            out.append(sum(weight / total * token.value[g] for token, weight in parts))
        return np.concatenate(out)

    def forget(self) -> None:
        """Sets what was attended to back."""
        for token in (token for kept in self.layers for token in kept):
            token.mass = 0.0

    def evict(self, budget: int, sinks: int, worth: Worth) -> None:
        """Cuts each layer back to at most ``budget`` tokens, if it may, in whole blocks."""
        for kept in self.layers:
            if len(kept) <= budget:
                continue
            price = worth(kept)
            may_go = [
                i for i in range(sinks, len(kept) - SLACK) if kept[i].position >= sinks
                and price[i] < math.inf
            ]  # fmt: skip
            blocks = min(-(-(len(kept) - budget) // BLOCK), len(may_go) // BLOCK)
            going = sorted(may_go, key=lambda i: (price[i], i))[: blocks * BLOCK]
            kept[:] = [token for i, token in enumerate(kept) if i not in going]


def newest(kept: list[Kept]) -> list[float]:
    """Of StreamingLLM."""
    return [float(token.position) for token in kept]


def heaviest(budget: int) -> Worth:
    """Of H2O: the mass, and recent tokens for one half of the budget."""

    def worth(kept: list[Kept]) -> list[float]:
        recent = len(kept) - budget // 2
        return [math.inf if i >= recent else token.mass for i, token in enumerate(kept)]

    return worth


def pooled(observes: int, side: int) -> Worth:
    """Of SnapKV: the largest mass among neighbours, and the observing tokens themselves."""

    def worth(kept: list[Kept]) -> list[float]:
        last = len(kept) - observes
        return [
            math.inf if i >= last
            else max(token.mass for token in kept[max(i - side, 0) : i + side + 1])
            for i in range(len(kept))
        ]  # fmt: skip

    return worth
