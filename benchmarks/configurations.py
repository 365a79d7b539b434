"""The rows of a comparison: what to run, how many bits and bytes it takes, how to recognise it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from models import Baseline, Exported, Model, Original

from benchmarks.rivals.catalogue import RIVALS, Exact
from benchmarks.rivals.model_facts import ModelFacts
from minicache.exporter.baselines.cache_codec import CacheCodec
from minicache.exporter.baselines.cache_shape import CacheShape
from minicache.exporter.baselines.exact_cache import Array
from minicache.exporter.baselines.kivi import Kivi
from minicache.exporter.baselines.static_integer import StaticInteger
from minicache.runtime.accounting import bits_per_element
from minicache.runtime.cache import Cache
from minicache.runtime.eviction.size import steady_slots
from minicache.runtime.manifest import Manifest

PLAIN = ("static-int8", "static-int4", "kivi-int4", "kivi-int3", "kivi-int2", *RIVALS)
PROTECTED = "-protected"  # with the sinks and the window that exports of ours have by default
SINKS, WINDOW = 4, 64
BASELINES = (*PLAIN, *(name + PROTECTED for name in PLAIN))
FITTED = ("static", *(name for name, rival in RIVALS.items() if rival.count))  # to a text


@dataclass
class Configuration:
    """One row of a comparison.

    Attributes:
        name: for tables.
        identity: names what it computes; results with the same identity are interchangeable.
        bits: per element of the coded part.
        cache_bytes: bytes of one row's cache at a context.
        make: opens it.
        chunk: most tokens per call that do not flatter it; None: any.
    """

    name: str
    identity: str
    bits: float
    cache_bytes: Callable[[int], int]
    make: Callable[[], Model]
    chunk: int | None = None
    _model: Model | None = None

    @property
    def model(self) -> Model:
        """The model, opened on first use: a resumed run may not need it."""
        if self._model is None:
            self._model = self.make()
        return self._model


def exported(
    name: str,
    folder: Path,
    identity: str,
    capacity: int,
    threads: int | None,
    generated: int = 0,
) -> Configuration:
    """The configuration of a real export.

    Args:
        name: for tables.
        folder: of the export.
        identity: what names its results.
        capacity: tokens of the longest text.
        threads: of its session.
        generated: tokens of a text that come after the prompt, which evicting rows may keep.

    Raises:
        PackageError: the folder is not an export.
    """
    manifest = Manifest.load(folder)
    return Configuration(
        name,
        identity,
        bits_per_element(manifest),
        # Allocated, never touched: no memory is committed.
        lambda context: Cache(manifest, 1, steady_slots(manifest, context, generated)).nbytes,
        lambda: Exported(folder, capacity, threads),
        manifest.window or None,
    )


class Baselines:
    """Makes configurations of simulated codecs; static scales are fitted on first use.

    Args:
        original: whose session they run on.
        documents: to fit static scales to.
        identity: names the original and these documents.
        prompt: tokens of the prompts.
    """

    def __init__(
        self, original: Original, documents: Sequence[Sequence[int]], identity: str, prompt: int
    ) -> None:
        self._original, self._documents, self._identity = original, documents, identity
        self._vectors: dict[int, tuple[list[Array], list[Array]]] = {}
        session = original.session
        self._shape = CacheShape.of(session.manifest)
        self._facts = ModelFacts(
            session.folder,
            self._shape,
            session.capacity,
            prompt,
            lambda: self._sample(SINKS)[1],
        )

    def _sample(self, sinks: int) -> tuple[list[Array], list[Array]]:
        if sinks not in self._vectors:
            self._vectors[sinks] = self._original.vectors(self._documents, sinks)
        return self._vectors[sinks]

    def configuration(self, name: str) -> Configuration:
        """The configuration of one of ``BASELINES``."""
        plain = name.removesuffix(PROTECTED)
        protected = plain != name
        if plain in RIVALS:
            return self._rival(name, plain, protected)
        family, bits = plain.split("-int")
        shape = self._shape
        sinks = SINKS if protected else 0
        window = WINDOW if protected or family == "kivi" else 0

        if family == "kivi":
            kivi = Kivi(int(bits), shape, sinks, window, name)
            return Configuration(
                name, name, kivi.bits_per_element, self._with_rings(kivi),
                lambda: Baseline(self._original, kivi), window,
            )  # fmt: skip

        def fit() -> Model:
            codec = StaticInteger.fit(
                *self._sample(sinks), int(bits), sinks=sinks, window=window, name=name
            )
            return Baseline(self._original, codec)

        # Bytes and bits do not depend on the scales.
        scales = (np.ones((shape.num_kv_heads, shape.head_dim), np.float32),) * shape.layers
        unfitted = StaticInteger(int(bits), scales, scales, sinks, window, name)
        return Configuration(
            name, f"{name} {self._identity}", unfitted.bits_per_element, self._with_rings(unfitted),
            fit, window or None,
        )  # fmt: skip

    def _rival(self, name: str, plain: str, protected: bool) -> Configuration:
        rival = RIVALS[plain]
        exact = Exact(SINKS, WINDOW) if protected else rival.exact
        counted = (rival.count or rival.make)(self._facts, exact, name)
        return Configuration(
            name,
            f"{name} {self._identity}" if rival.count else name,
            counted.bits_per_element,
            self._with_rings(counted),
            lambda: Baseline(self._original, rival.make(self._facts, exact, name)),
            exact.window or None,
        )

    def _with_rings(self, codec: CacheCodec) -> Callable[[int], int]:
        # Sliding-window layers hold the same whatever the codec.
        return lambda context: codec.cache_bytes(context) + self._shape.ring_bytes


def named_path(text: str) -> tuple[str, Path]:
    """Parses ``NAME=PATH`` of a command line."""
    name, found, path = text.partition("=")
    if not (name and found and path):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=PATH")
    return name, Path(path)
