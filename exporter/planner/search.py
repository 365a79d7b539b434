"""Finds the plan of the ``subspace`` mode.

1. Sensitivities: each layer's keys and values are coded alone and the loss is measured. From then
   on, errors that the calibration expects are in nats of KL.
2. For every structure (group size, kv heads apart or joint) the curve of predicted loss against
   bytes of every group; a budget is spread over all groups, keys and values at equal slope.
3. Of the structures with the least predicted loss the best few are measured on held-out text. With
   a bound on bytes, the least measured KL wins. With a bound on the loss only, ratios are tried
   from small to large, then halfway between the last that passed and the first that failed.

Everything measured is kept in the journal, so that a search that was stopped goes on.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass

from minicache.exporter.baselines.cache_shape import CacheShape
from minicache.exporter.baselines.subspace_simulation import SubspaceSimulation
from minicache.exporter.calibration.calibration import KINDS, Calibration
from minicache.exporter.planner.candidate import Candidate, CurveSet, fp16_bytes
from minicache.exporter.planner.frontier import FrontierPoint
from minicache.exporter.planner.goal import DEFAULT_MAX_RATIO, Goal, bytes_at
from minicache.exporter.planner.journal import Journal
from minicache.exporter.planner.loss_meter import LossMeter
from minicache.exporter.planner.measured_loss import MeasuredLoss
from minicache.exporter.planner.sensitivity import measure_sensitivities
from minicache.exporter.planner.structure import structures
from minicache.runtime.errors import PlanError
from minicache.runtime.progress import progress

RATIOS = (16 / 5, 4.0, 16 / 3, 6.4, 8.0, 32 / 3, 16.0)  # 5 to 1 bits per element
FINALISTS = 3  # structures that are measured at a budget
HALVINGS = 2


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Attributes:
        candidate: the plan.
        loss: its measured loss.
        sensitivities: that the codecs are weighted by.
        frontier: everything measured, by ascending ratio.
    """

    candidate: Candidate
    loss: MeasuredLoss
    sensitivities: dict[str, tuple[float, ...]]
    frontier: list[FrontierPoint]


class Search:
    """One search; ``run`` does it.

    Args:
        calibration: of the model; weighted by sensitivities afterwards.
        meter: held-out documents.
        goal: what must be reached.
        sinks: exact first tokens N.
        window: exact recent tokens W.
        journal: keeps measurements.
        quiet: no progress on stderr.
    """

    def __init__(
        self,
        calibration: Calibration,
        meter: LossMeter,
        goal: Goal,
        *,
        sinks: int,
        window: int,
        journal: Journal,
        quiet: bool = True,
    ) -> None:
        self.calibration, self.meter, self.goal = calibration, meter, goal
        self.sinks, self.window = sinks, window
        self.journal, self.quiet = journal, quiet
        self._measured: dict[str, tuple[Candidate, MeasuredLoss]] = {}
        self._deadline = time.monotonic() + 60 * goal.minutes

    def run(self) -> SearchResult:
        """Searches.

        Raises:
            PlanError: the goal cannot be reached; the message has the best that was found.
        """
        sensitivities = self._sensitivities()
        self.calibration.weigh(sensitivities)
        sets = self._curves()
        budget = self.goal.budget(fp16_bytes(self.calibration))
        if budget is None:
            chosen = self._largest_ratio(sets)
        else:
            chosen = self._best_at(sets, budget)
            self._check_loss(*chosen)
            self._neighbours(sets, chosen[0])
        return SearchResult(*chosen, sensitivities, self._frontier(chosen[0]))

    def _sensitivities(self) -> dict[str, tuple[float, ...]]:
        def measure() -> dict[str, tuple[float, ...]]:
            return measure_sensitivities(
                self.calibration, self.meter, sinks=self.sinks, window=self.window, quiet=self.quiet
            )

        def read(found: dict[str, list[float]]) -> dict[str, tuple[float, ...]]:
            rows = {kind: tuple(map(float, found[kind])) for kind in KINDS}
            if any(len(row) != len(self.calibration.layers) for row in rows.values()):
                raise ValueError("of another model's layers")
            return rows

        return self.journal.get("sensitivities", measure, read)

    def _curves(self) -> list[CurveSet]:
        goal, layers = self.goal, self.calibration.layers
        most = min(goal.max_group_size, self.calibration.max_group_size)
        tried = structures(layers, most, goal.code_heads)
        sets = []
        with progress("comparing structures", total=len(tried), quiet=self.quiet) as step:
            for structure in tried:
                sets.append(CurveSet.of(self.calibration, structure))
                step.advance()
        return sets

    def _ranked(self, sets: Sequence[CurveSet], budget: int) -> list[Candidate]:
        """Candidates of all structures within a budget, by predicted loss."""
        fitting = [one for one in sets if one.smallest <= budget]
        if not fitting:
            least = min(one.smallest for one in sets)
            most = fp16_bytes(self.calibration) / least
            raise PlanError(
                f"{budget} coded bytes per token cannot be reached: the smallest codes take "
                f"{least} (ratio {most:.1f}); ask for less, or allow larger groups "
                "(--max-group-size) or joint heads (--code-heads any)"
            )
        return sorted((one.candidate(budget) for one in fitting), key=lambda one: one.predicted)

    def _measure(self, candidate: Candidate) -> MeasuredLoss:
        def measure() -> dict[str, object]:
            simulation = SubspaceSimulation(
                tuple(candidate.codecs(self.calibration)),
                CacheShape(len(self.calibration.layers), first.num_kv_heads, first.head_dim),
                sinks=self.sinks,
                window=self.window,
            )
            total = len(self.meter.documents)
            label = f"measuring {candidate.bits_per_element:.2f} bits, {candidate.structure.name}"
            with progress(label, total=total, quiet=self.quiet) as step:
                return self.meter.measure([simulation], step)[0].to_dict()

        first = self.calibration.layers[0]
        loss = self.journal.get(candidate.name, measure, MeasuredLoss.from_dict)
        self._measured[candidate.name] = candidate, loss
        return loss

    def _best_at(self, sets: Sequence[CurveSet], budget: int) -> tuple[Candidate, MeasuredLoss]:
        best: tuple[Candidate, MeasuredLoss] | None = None
        for candidate in self._ranked(sets, budget)[:FINALISTS]:
            if best is not None and self._late():
                break
            loss = self._measure(candidate)
            if best is None or not best[1].kl_mean <= loss.kl_mean:  # NaN is never the best
                best = candidate, loss
        assert best is not None
        return best

    def _passes(self, loss: MeasuredLoss) -> bool:
        if self.goal.max_kl is not None:
            return loss.kl_mean <= self.goal.max_kl
        # KL as well: on few tokens it is the steadier of the two.
        return loss.kl_mean <= DEFAULT_MAX_RATIO - 1 and loss.interval()[1] <= DEFAULT_MAX_RATIO

    def _largest_ratio(self, sets: Sequence[CurveSet]) -> tuple[Candidate, MeasuredLoss]:
        plain = fp16_bytes(self.calibration)
        passed: tuple[Candidate, MeasuredLoss] | None = None
        low = high = 0.0
        for ratio in RATIOS:
            if passed and all(one.smallest > bytes_at(plain, ratio) for one in sets):
                break  # no code is that small
            candidate = self._ranked(sets, bytes_at(plain, ratio))[0]
            loss = self._measure(candidate)
            if not self._passes(loss):
                high = ratio
                break
            passed, low = (candidate, loss), ratio
            if self._late():
                break
        if passed is None:
            self._check_loss(candidate, loss)  # with --max-kl; else the sentence below
            raise PlanError(
                f"even {candidate.bits_per_element:.1f} bits per element cost more than 1 % "
                f"perplexity on the calibration text (x {loss.perplexity_ratio:.4f}, KL "
                f"{loss.kl_mean:.4f}); choose the loss with --max-kl or the size with --ratio, or "
                "use --mode exact"
            )
        for _ in range(HALVINGS if high else 0):
            if self._late():
                break
            middle = (low * high) ** 0.5
            candidate = self._ranked(sets, bytes_at(plain, middle))[0]
            loss = self._measure(candidate)
            if self._passes(loss):
                passed, low = (candidate, loss), middle
            else:
                high = middle
        return passed

    def _neighbours(self, sets: Sequence[CurveSet], chosen: Candidate) -> None:
        """Measures the usual ratios next to the chosen one, for the table of the frontier."""
        plain = fp16_bytes(self.calibration)
        above = [ratio for ratio in RATIOS if ratio > 1.1 * chosen.ratio][:1]
        below = [ratio for ratio in RATIOS if ratio < 0.9 * chosen.ratio][-1:]
        for budget in (bytes_at(plain, ratio) for ratio in (*below, *above)):
            if not self._late() and any(one.smallest <= budget for one in sets):
                self._measure(self._ranked(sets, budget)[0])

    def _check_loss(self, candidate: Candidate, loss: MeasuredLoss) -> None:
        limit = self.goal.max_kl
        if limit is not None and not loss.kl_mean <= limit:
            raise PlanError(
                f"the best plan found at ratio {candidate.ratio:.2f} ({candidate.structure.name}) "
                f"has a KL of {loss.kl_mean:.4f} nats (perplexity x {loss.perplexity_ratio:.4f}), "
                f"more than --max-kl {limit:g}; ask for a smaller ratio, or allow more"
            )

    def _late(self) -> bool:
        return time.monotonic() > self._deadline

    def _frontier(self, chosen: Candidate) -> list[FrontierPoint]:
        points = [
            dataclasses.replace(
                FrontierPoint.of(candidate, loss), chosen=candidate.name == chosen.name
            )
            for candidate, loss in self._measured.values()
        ]
        return sorted(points, key=lambda point: (point.ratio, point.kl))
