"""A structure with a budget: which bits every group gets, and what that should cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minicache.exporter.calibration.calibration import KINDS, Calibration
from minicache.exporter.calibration.codec import SubspaceCodec
from minicache.exporter.plan import Group
from minicache.exporter.planner.rate_curve import RatePoint, rate_curve
from minicache.exporter.planner.spread import spread
from minicache.exporter.planner.structure import Structure

FP16_BYTES = 2


@dataclass(frozen=True)
class Candidate:
    """A plan that is not made yet.

    Attributes:
        structure: how the layers are cut.
        groups: with their bits.
        bytes_per_token: of all codes, magnitudes included.
        bytes_read: codes that a decode step reads per cached token: each layer reads all of its
            group's.
        ratio: of a plain fp16 cache of the same layers to ``bytes_per_token``.
        predicted: expected KL in nats per token.
    """

    structure: Structure
    groups: tuple[Group, ...]
    bytes_per_token: int
    bytes_read: int
    ratio: float
    predicted: float

    @property
    def name(self) -> str:
        """For journals."""
        return f"{self.structure.name}, {self.bytes_per_token} bytes"

    @property
    def bits_per_element(self) -> float:
        """Of the coded part, magnitudes included."""
        return 16 / self.ratio

    def codecs(self, calibration: Calibration) -> list[SubspaceCodec]:
        """Makes the codecs of all groups."""
        return make_codecs(self.groups, calibration)


def make_codecs(groups: Sequence[Group], calibration: Calibration) -> list[SubspaceCodec]:
    """The codecs of the ``subspace`` groups.

    Raises:
        PlanError: layers that cannot share a code, or a budget that is too small.
    """
    codecs = []
    for group in groups:
        if group.mode == "subspace":
            bits = group.key_bits_per_element, group.value_bits_per_element
            codecs.append(calibration.codec(group.layers, group.code_heads, *bits))
            calibration.forget_bases()  # some MB each, and only this group needs them
    return codecs


def fp16_bytes(calibration: Calibration) -> int:
    """Bytes per token of a plain fp16 cache of all layers that can be coded."""
    return sum(2 * FP16_BYTES * layer.num_kv_heads * layer.head_dim for layer in calibration.layers)


@dataclass(frozen=True)
class CurveSet:
    """The rate curves of a structure; ``candidate`` makes plans of any budget from them.

    Attributes:
        structure: how the layers are cut.
        layers: of each group.
        code_heads: of each group.
        curves: of each group's keys and values, alternating.
        plain_bytes: per token of a plain fp16 cache.
    """

    structure: Structure
    layers: tuple[tuple[int, ...], ...]
    code_heads: tuple[int, ...]
    curves: tuple[list[RatePoint], ...]
    plain_bytes: int

    @staticmethod
    def of(calibration: Calibration, structure: Structure) -> CurveSet:
        """Computes the curves.

        Raises:
            PlanError: the structure does not fit the calibration.
        """
        cut = structure.groups(calibration.layers)
        heads = [structure.code_heads(calibration.layers[places[0]]) for places in cut]
        # A structure counts the layers that are coded, plans count all of the model's.
        groups = [tuple(calibration.layers[place].layer for place in places) for places in cut]
        curves = []
        for group, code_heads in zip(groups, heads, strict=True):
            for kind in KINDS:
                curves.append(rate_curve(calibration.basis(kind, group, code_heads), code_heads))
            calibration.forget_bases()
        plain = fp16_bytes(calibration)
        return CurveSet(structure, tuple(groups), tuple(heads), tuple(curves), plain)

    @property
    def smallest(self) -> int:
        """Bytes per token of the smallest codes."""
        return sum(curve[0].bytes for curve in self.curves)

    def candidate(self, budget: int) -> Candidate:
        """Spreads a budget of bytes per token.

        Raises:
            PlanError: it is too small.
        """
        points = spread(self.curves, budget)
        pairs = list(zip(points[0::2], points[1::2], strict=True))
        groups = tuple(
            Group(
                layers=layers,
                mode="subspace",
                code_heads=heads,
                key_bits_per_element=key.bits,
                value_bits_per_element=value.bits,
            )
            for layers, heads, (key, value) in zip(self.layers, self.code_heads, pairs, strict=True)
        )
        used = sum(point.bytes for point in points)
        read = sum(
            len(layers) * (key.bytes + value.bytes)
            for layers, (key, value) in zip(self.layers, pairs, strict=True)
        )
        predicted = sum(point.loss for point in points)
        return Candidate(self.structure, groups, used, read, self.plain_bytes / used, predicted)
