"""What a calibration learnt of a model: everything that makes codecs, for any plan.

It is made by ``calibrate``, saved by ``calibration_file``, and good for every ratio and grouping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt

from minicache.exporter.calibration.alignment import Alignment, fit_bases
from minicache.exporter.calibration.allocation import MULTIPLES
from minicache.exporter.calibration.codec import ProxyLoss, SubspaceCodec, fit_code
from minicache.exporter.calibration.klt import Basis, make_basis
from minicache.exporter.calibration.moments import JointMoments
from minicache.exporter.calibration.rope_probe import Rope
from minicache.exporter.calibration.rotation import average_over_offsets
from minicache.runtime.errors import PlanError

Array = npt.NDArray[Any]

KINDS = ("key", "value")


@dataclass(frozen=True)
class CalibratedLayer:
    """One attention layer.

    Attributes:
        layer: layer index.
        num_heads: query heads H.
        num_kv_heads: kv heads Hk.
        head_dim: head size D.
        kind: number of its kind; layers of different kinds never share a group.
        rope: of its keys.
    """

    layer: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    kind: int
    rope: Rope


@dataclass
class Calibration:
    """Statistics of a model on a calibration text.

    "By layer" counts ``layers`` only: in a model that has layers of sliding-window attention too,
    these are fewer than the model's. Groups name layers by the model's numbers.

    Attributes:
        layers: the model's layers of full attention, whose caches can be coded.
        query_moments: by layer, E[q q^T] of the queries that read a kv head, ``[Hk, D, D]``.
        output_metrics: by layer, W W^T of the output projection, ``[Hk, D, D]``.
        moments: joint moments of ``key`` (segment-relative) and ``value``.
        samples: of both, by layer ``[n, Hk, D]`` fp16: some tokens, spread evenly over the text.
        segment_length: positions L of a segment; 0 for layers whose RoPE is none or unknown.
        max_sequence_length: positions that the query metric is averaged over.
        sinks: first tokens of each document that were left out.
        tokens: tokens that were read.
        notes: remarks for the report.
        sensitivities: by ``key`` and ``value``, a factor of each layer's metric; empty: 1.
        multiples: by width, what counts of components are multiples of; set before any codec.
    """

    layers: tuple[CalibratedLayer, ...]
    query_moments: list[Array]
    output_metrics: list[Array]
    moments: dict[str, JointMoments]
    samples: dict[str, list[Array]]
    segment_length: int
    max_sequence_length: int
    sinks: int
    tokens: int
    notes: list[str] = field(default_factory=list)
    sensitivities: dict[str, tuple[float, ...]] = field(default_factory=dict)
    multiples: Mapping[int, int] = field(default_factory=lambda: MULTIPLES)
    _bases: dict[tuple[str, tuple[int, ...], int], Basis] = field(default_factory=dict, repr=False)

    @property
    def max_group_size(self) -> int:
        """Layers of the largest group that can be made."""
        return max(len(row) for row in self.moments["key"].partners)

    def codec(
        self,
        group_layers: Sequence[int],
        code_heads: int,
        key_bits_per_element: float,
        value_bits_per_element: float,
    ) -> SubspaceCodec:
        """Makes the codec of a group.

        Args:
            group_layers: layers of one kind, ascending.
            code_heads: Hc, a divisor of Hk.
            key_bits_per_element: most bits per key element, padding and magnitude included.
            value_bits_per_element: likewise for values.

        Raises:
            PlanError: the layers cannot share a code, or a budget is too small.
        """
        layers = self._check(group_layers, code_heads)
        budgets = {"key": key_bits_per_element, "value": value_bits_per_element}
        codes = {
            kind: fit_code(self.basis(kind, layers, code_heads), budgets[kind]) for kind in KINDS
        }
        rope, length = self._frame(layers[0])
        return SubspaceCodec(layers, codes["key"], codes["value"], rope, length)

    def alignment(self, group_layers: Sequence[int]) -> Alignment:
        """Makes the alignment of a group that merges by ``slerp``.

        Raises:
            PlanError: the layers cannot share a code.
        """
        layers = self._check(group_layers, code_heads=1)
        places = self._places(layers)
        heads = self.layers[places[0]].num_kv_heads
        key, value = (fit_bases(self.moments[kind], places, heads) for kind in KINDS)
        return Alignment(layers, key, value, *self._frame(layers[0]))

    def proxy_loss(
        self,
        group_layers: Sequence[int],
        code_heads: int,
        key_bits_per_element: float,
        value_bits_per_element: float,
    ) -> ProxyLoss:
        """What the codec of these arguments is expected to lose; cheaper than making it.

        Raises:
            PlanError: as ``codec``.
        """
        layers = self._check(group_layers, code_heads)
        key = self.basis("key", layers, code_heads)
        value = self.basis("value", layers, code_heads)
        scale = self.layers[self.place(layers[0])].head_dim ** -0.5
        key_layout = key.allocate(key_bits_per_element)
        value_layout = value.allocate(value_bits_per_element)
        return ProxyLoss(
            key_relative=key_layout.distortion,
            value_relative=value_layout.distortion,
            score_error=scale**2 * key_layout.distortion * key.energy,
            output_error=value_layout.distortion * value.energy,
        )

    def basis(self, kind: str, layers: tuple[int, ...], code_heads: int) -> Basis:
        """The joint basis of a group's keys or values; kept, as every budget needs it."""
        known = kind, layers, code_heads
        if known not in self._bases:
            places = self._places(layers)
            self._bases[known] = make_basis(
                self.moments[kind],
                [self._metric(kind, place) for place in places],
                [self.samples[kind][place] for place in places],
                places,
                code_heads,
                self.multiples,
            )
        return self._bases[known]

    def weigh(self, sensitivities: Mapping[str, Sequence[float]]) -> None:
        """Weighs the layers of a group against each other; every codec made from now on does so.

        Raises:
            PlanError: not a positive number for every layer.
        """
        for kind in KINDS:
            row = sensitivities.get(kind, ())
            if len(row) != len(self.layers) or not all(0 < x < float("inf") for x in row):
                raise PlanError(
                    f"the sensitivities of {kind}s are {list(row)}; give a positive number for "
                    f"each of the {len(self.layers)} layers of full attention"
                )
        self.sensitivities = {kind: tuple(sensitivities[kind]) for kind in KINDS}
        self.forget_bases()

    def save(self, path: Path) -> None:
        """Writes everything to one file, as ``calibration_file.save_calibration``."""
        from minicache.exporter.calibration.calibration_file import save_calibration

        save_calibration(self, path)

    @staticmethod
    def load(path: Path) -> Calibration:
        """Reads what ``save`` wrote, as ``calibration_file.load_calibration``."""
        from minicache.exporter.calibration.calibration_file import load_calibration

        return load_calibration(path)

    def forget_bases(self) -> None:
        """Frees the bases made so far, a few MB each."""
        self._bases.clear()

    def place(self, layer: int) -> int:
        """Where a layer of the model stands in ``layers``."""
        return self._places((layer,))[0]

    def _places(self, layers: tuple[int, ...]) -> tuple[int, ...]:
        known = [one.layer for one in self.layers]
        return tuple(known.index(layer) for layer in layers)

    def _frame(self, layer: int) -> tuple[Rope, int]:
        """RoPE and segment length of the keys of a layer and its kind."""
        rope = self.layers[self.place(layer)].rope
        return rope, self.segment_length if rope.kind == "rotary" else 0

    def _metric(self, kind: str, place: int) -> Array:
        factor = self.sensitivities[kind][place] if self.sensitivities else 1.0
        if kind == "value":
            return factor * self.output_metrics[place]
        rope, moments = self.layers[place].rope, self.query_moments[place]
        return factor * average_over_offsets(moments, rope, self.max_sequence_length)

    def _check(self, group_layers: Sequence[int], code_heads: int) -> tuple[int, ...]:
        layers = tuple(group_layers)
        known = [layer.layer for layer in self.layers]
        if not layers or not set(layers) <= set(known) or list(layers) != sorted(set(layers)):
            every = f"0..{len(known) - 1}"
            if known != list(range(len(known))):
                every = f"{', '.join(map(str, known))} (the others attend to a sliding window)"
            raise PlanError(
                f"a group holds layers {list(layers)}; give different ones of {every}, ascending"
            )
        places = self._places(layers)
        first = self.layers[places[0]]
        for place in places[1:]:
            if self.layers[place].kind != first.kind:
                raise PlanError(
                    f"layers {layers[0]} and {known[place]} are of different kind (heads or RoPE) "
                    "and cannot share a code"
                )
        if places[-1] not in self.moments["key"].partners[places[0]]:
            raise PlanError(
                f"layers {layers[0]} and {layers[-1]} are further apart than the calibration "
                f"covers ({self.max_group_size} layers of a kind); calibrate with a larger "
                "max_group_size"
            )
        if code_heads < 1 or first.num_kv_heads % code_heads:
            raise PlanError(
                f"code_heads is {code_heads}; give a divisor of the {first.num_kv_heads} kv heads"
            )
        return layers
