"""The joint basis of a group: the Karhunen-Loeve transform of its weighted vectors.

For a code head the vectors of all its layers and heads are weighted by the root of their metric and
joined, z = blockdiag(M^(1/2)) [x_1; ...; x_G]: a squared error of z is then what the model feels.
The eigenvectors of E[z z^T] concentrate the energy in as few components as a linear transform can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.exporter.calibration.allocation import MULTIPLES, Layout, allocate
from minicache.exporter.calibration.matching import match_heads
from minicache.exporter.calibration.moments import JointMoments
from minicache.exporter.calibration.quantiser import WIDTHS, fit_quantiser

Array = npt.NDArray[Any]

RIDGE = 1e-4  # of the metric's mean eigenvalue: directions that no query used may matter once
TINY = 1e-20  # of a metric that is zero altogether


@dataclass(frozen=True)
class Basis:
    """The joint basis of a group's keys or values.

    Attributes:
        permutation: ``[G][Hk]``: the head of a layer in each slot.
        roots: M^(1/2) by layer and head, ``[G, Hk, D, D]``.
        inverse_roots: M^(-1/2) likewise.
        vectors: eigenvectors as columns, by descending eigenvalue, ``[Hc, E, E]``, E = G * J * D.
        samples: components of the samples' weighted vectors, ``[Hc, n, E]`` fp32.
        variance: of unit directions' components, mean over code heads ``[E]``.
        distortion: by width, what each component loses at it, likewise.
        energy: mean squared length of z, summed over code heads.
        multiples: by width, what counts of components are multiples of.
    """

    permutation: tuple[tuple[int, ...], ...]
    roots: Array
    inverse_roots: Array
    vectors: Array
    samples: Array
    variance: Array
    distortion: dict[int, Array]
    energy: float
    multiples: Mapping[int, int] = field(default_factory=lambda: MULTIPLES)

    def allocate(self, bits_per_element: float) -> Layout:
        """The best layout within a budget.

        Raises:
            PlanError: the budget is too small.
        """
        return allocate(self.variance, self.distortion, bits_per_element, self.multiples)


def metric_roots(metric: Array) -> tuple[Array, Array]:
    """M^(1/2) and M^(-1/2) of metrics ``[..., D, D]``, with the ridge."""
    size = metric.shape[-1]
    mean = np.einsum("...dd->...", metric) / size
    floor = np.where(mean > 0, RIDGE * mean, 1.0)  # a head that nothing reads: weigh evenly
    eigenvalues, vectors = np.linalg.eigh(metric + floor[..., None, None] * np.eye(size))
    # Rounding may leave an eigenvalue of a singular metric below the ridge.
    root = np.sqrt(np.maximum(eigenvalues, floor[..., None] / 2))[..., None, :]
    transposed = np.swapaxes(vectors, -1, -2)
    return (vectors * root) @ transposed, (vectors / root) @ transposed


def make_basis(
    moments: JointMoments,
    metrics: Sequence[Array],
    samples: Sequence[Array],
    layers: Sequence[int],
    code_heads: int,
    multiples: Mapping[int, int] = MULTIPLES,
) -> Basis:
    """Makes the basis of a group.

    Args:
        moments: of the whole model's keys or values.
        metrics: of the group's layers, each ``[Hk, D, D]``.
        samples: of the group's layers, each ``[n, Hk, D]``.
        layers: the group.
        code_heads: Hc.
        multiples: of the basis.
    """
    heads = len(metrics[0])
    roots, inverse_roots = metric_roots(np.stack(metrics))
    weighted = _weighted_moments(moments, roots, layers)
    permutation = _match(weighted, code_heads)
    joined = heads // code_heads
    order = np.asarray(permutation)  # [G, Hk]
    bases, projected = [], []
    for head in range(code_heads):
        slots = order[:, head * joined : (head + 1) * joined]  # [G, J]
        flat = [(g, int(own)) for g, row in enumerate(slots) for own in row]
        matrix = np.block([[weighted[a, b][ha, hb] for b, hb in flat] for a, ha in flat])
        _, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
        vectors = np.ascontiguousarray(vectors[:, ::-1])
        parts = [samples[g][:, own].astype(np.float32) @ roots[g, own] for g, own in flat]
        bases.append(vectors)
        projected.append((np.concatenate(parts, axis=1) @ vectors).astype(np.float32))
    components = np.stack(projected)
    lengths = np.sum(np.square(components), axis=2, dtype=np.float64)  # [Hc, n]
    units = components / np.sqrt(np.maximum(lengths, TINY))[..., None].astype(np.float32)
    return Basis(
        permutation=permutation,
        roots=roots,
        inverse_roots=inverse_roots,
        vectors=np.stack(bases),
        samples=components,
        variance=np.square(units).mean(axis=1, dtype=np.float64).mean(axis=0),
        distortion={
            width: np.mean([fit_quantiser(unit, width).distortion for unit in units], axis=0)
            for width in WIDTHS
        },
        energy=float(lengths.mean(axis=1).sum()),
        multiples=multiples,
    )


def _weighted_moments(
    moments: JointMoments, roots: Array, layers: Sequence[int]
) -> dict[tuple[int, int], Array]:
    """By pair of slots (a, b): M_a^(1/2) E[x_a x_b^T] M_b^(1/2) of all heads ``[Hk, Hk, D, D]``."""
    heads, size = roots.shape[1:3]
    found = {}
    for a, layer in enumerate(layers):
        for b, other in enumerate(layers):
            block = moments.block(layer, other)
            assert block is not None, (layer, other)
            by_head = block.reshape(heads, size, heads, size).transpose(0, 2, 1, 3)
            found[a, b] = roots[a][:, None] @ by_head @ roots[b][None]
    return found


def _match(weighted: dict[tuple[int, int], Array], code_heads: int) -> tuple[tuple[int, ...], ...]:
    """Slots of every layer: the group's first layer keeps its order."""
    heads = weighted[0, 0].shape[0]
    group = max(a for a, _ in weighted) + 1
    own = tuple(range(heads))
    if code_heads == 1:
        return (own,) * group  # all heads share one code: their order does not matter
    diagonal = np.arange(heads)
    first = weighted[0, 0][diagonal, diagonal]
    matched = [own]
    for layer in range(1, group):
        other = weighted[layer, layer][diagonal, diagonal]
        matched.append(match_heads(first, other, weighted[0, layer]))
    return tuple(matched)
