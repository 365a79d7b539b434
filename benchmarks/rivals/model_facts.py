"""What rival methods need to know of a model; found out on first use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy.typing as npt

from benchmarks.rivals.alignment import HeadMap
from benchmarks.rivals.projections import Projection, read_projections, read_ropes
from benchmarks.rivals.vfold import VFold
from minicache.exporter.baselines.cache_shape import CacheShape
from minicache.exporter.calibration.rope_probe import Rope
from minicache.runtime.errors import UnsupportedModelError

Array = npt.NDArray[Any]


@dataclass
class ModelFacts:
    """An exact export, and the texts that methods may be fitted to.

    Attributes:
        folder: of the export.
        shape: of its cache.
        positions: tokens that its sessions hold.
        prompt: tokens of the prompts, for counting bytes.
        sample: gives values by layer of full attention, ``[n, Hk, D]``.
    """

    folder: Path
    shape: CacheShape
    positions: int
    prompt: int
    sample: Callable[[], Sequence[Array]]
    _maps: dict[int, tuple[HeadMap, ...]] = field(default_factory=dict, repr=False)

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """See ``read_ropes``."""
        found = self._ropes
        if isinstance(found, UnsupportedModelError):
            raise found
        return found

    @property
    def projections(self) -> tuple[Projection, ...]:
        """See ``read_projections``."""
        found = self._projections
        if isinstance(found, UnsupportedModelError):
            raise found
        return found

    # A refusal takes as long to find out as an answer, and concerns every setting of a method.

    @cached_property
    def _ropes(self) -> tuple[Rope, ...] | UnsupportedModelError:
        try:
            return read_ropes(self.folder, self.positions)
        except UnsupportedModelError as error:
            return error

    @cached_property
    def _projections(self) -> tuple[Projection, ...] | UnsupportedModelError:
        try:
            return read_projections(self.folder)
        except UnsupportedModelError as error:
            return error

    def maps(self, group_layers: int) -> tuple[HeadMap, ...]:
        """See ``VFold.fit``."""
        if group_layers not in self._maps:
            self._maps[group_layers] = VFold.fit(self.sample(), group_layers)
        return self._maps[group_layers]

    def identity_maps(self) -> tuple[HeadMap, ...]:
        """Maps that leave values as they are."""
        heads, size = self.shape.num_kv_heads, self.shape.head_dim
        return (HeadMap.identity(heads, size),) * self.shape.layers
