"""How much the model's output suffers from an error in one layer's keys or values.

The metrics of calibration weigh an error by what one layer makes of it: keys by the scores, values
by what reaches the residual stream. What the layers above make of that is measured: one layer is
coded at a time, and the KL divergence that this costs, divided by the error that the calibration
expects, is the layer's sensitivity. Small losses add up (each is quadratic in its error), so that
sums of error times sensitivity predict the loss of any plan; as weights of the metrics they let a
group's basis spend its components where they count.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicache.exporter.calibration.calibration import KINDS, Calibration
from minicache.exporter.planner.coded_layer import CodedLayer
from minicache.exporter.planner.loss_meter import LossMeter
from minicache.runtime.progress import progress

PROBE_BITS = 2.0  # per element: far above rounding noise, and small enough to be quadratic
SCORED = 64  # tokens of each document
# A single layer's loss on few tokens is noisy; none is taken for less, or more, than this share of
# the median of its kind.
LOWEST, HIGHEST = 0.05, 20.0


def measure_sensitivities(
    calibration: Calibration, meter: LossMeter, *, sinks: int, window: int, quiet: bool
) -> dict[str, tuple[float, ...]]:
    """Measures each layer's keys and values.

    Returns:
        By kind, a number per layer of the calibration: nats of KL per token and unit of the
        calibration's error.
    """
    probes, errors = [], []
    for place, layer in enumerate(calibration.layers):
        bits = max(PROBE_BITS, 56 / layer.head_dim)  # the smallest code of a small head
        codec = calibration.codec([layer.layer], layer.num_kv_heads, bits, bits)
        for kind, code in zip(KINDS, (codec.key, codec.value), strict=True):
            basis = calibration.basis(kind, (layer.layer,), layer.num_kv_heads)
            errors.append(code.distortion * basis.energy)
            probes.append(CodedLayer(codec, place, kind, sinks, window))
        calibration.forget_bases()
    total = len(probes) * len(meter.documents)
    with progress("measuring layers", total=total, quiet=quiet) as step:
        losses = meter.measure(probes, step, SCORED)
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for probe, error, loss in zip(probes, errors, losses, strict=True):
        found[probe.kind].append(loss.kl_mean / error if error > 0 else 0.0)
    return {kind: bounded(row) for kind, row in found.items()}


def bounded(row: Sequence[float]) -> tuple[float, ...]:
    """Replaces what is too far from the median to be believed, zeros and NaN included."""
    given = np.nan_to_num(np.asarray(row, np.float64), nan=0.0)
    positive = given[given > 0]
    middle = float(np.median(positive)) if positive.size else 1.0
    return tuple(float(x) for x in np.clip(given, LOWEST * middle, HIGHEST * middle))
