"""What is timed: a graph of layers of ours or of ONNX Runtime's, large enough for no cache."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from benchmarks.cpu.formats import Format
from benchmarks.cpu.layer_chain import Layers
from benchmarks.cpu.library import Choice, Libraries
from benchmarks.cpu.ort_baselines import BASELINES
from benchmarks.cpu.our_layers import our_layers
from benchmarks.cpu.step_shape import StepShape
from benchmarks.cpu.traffic import Traffic, our_traffic, plain_traffic, visible

LEAST_LAYERS = 2


@dataclass(frozen=True)
class Contestant:
    """A row of a table.

    Attributes:
        name: unique in the table.
        form: the format or the baseline, without the choice of maths.
        tokens: that a call attends to, of all batch rows.
    """

    name: str
    form: str
    choice: Choice
    tokens: int
    traffic: Traffic
    layers: Layers = field(repr=False)


class Maker:
    """Makes contestants of at least ``least`` groups that read ``spread`` bytes in a step."""

    def __init__(
        self, libraries: Libraries, threads: int, spread: int, least: int = LEAST_LAYERS
    ) -> None:
        self._libraries, self._threads, self._spread = libraries, threads, spread
        self._least = least

    def ours(self, form: Format, shape: StepShape, choice: Choice) -> Contestant:
        """Our operator."""
        traffic = our_traffic(form, shape)
        groups = math.ceil(
            self._spread / max(traffic.cache, 1.0)
        )  # the layers of a group share its code
        groups = max(self._least, groups)
        with self._libraries.chosen(choice) as library:
            layers = our_layers(form, shape, groups, self._threads, library)
        shown = choice if form.coded else Choice(choice.isa)
        name = f"{form.name} {shown}".strip()
        return Contestant(name, form.name, shown, sum(visible(form, shape)), traffic, layers)

    def baseline(self, name: str, shape: StepShape) -> Contestant:
        """ONNX Runtime's attention."""
        baseline = BASELINES[name]
        traffic = plain_traffic(shape, baseline.bytes_per_element)
        count = max(self._least, math.ceil(self._spread / max(traffic.cache, 1.0)))
        layers = baseline.make(shape, count, self._threads)
        return Contestant(name, name, Choice(), sum(shape.totals), traffic, layers)
