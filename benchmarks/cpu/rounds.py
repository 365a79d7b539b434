"""Times several things in turns, so that a busy machine disturbs all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from minicache.runtime.spread import Spread

Run = Callable[[], object]
MOST_REPEATS = 12


def ratio(baseline: Sequence[float], ours: Sequence[float]) -> Spread:
    """How many times faster: the two are compared within each round."""
    return Spread.of([b / o for b, o in zip(baseline, ours, strict=True)])


def timed(run: Run, clock: Callable[[], float], seconds: float) -> float:
    """The median of some runs after one that is not timed; of one run where no time is given."""
    if seconds == 0:
        begin = clock()
        run()
        return clock() - begin
    run()
    times: list[float] = []
    while len(times) < 2 or (sum(times) < seconds and len(times) < MOST_REPEATS):
        begin = clock()
        run()
        times.append(clock() - begin)
    return statistics.median(times)


def interleaved(
    runs: Mapping[str, Run],
    rounds: int,
    clock: Callable[[], float] = time.thread_time,
    seconds: float = 0.05,
) -> dict[str, list[float]]:
    """Seconds of every run, one value per round.

    Args:
        runs: by name.
        rounds: how often each gets its turn.
        clock: ``time.thread_time`` counts what one thread computed, not what it waited for.
        seconds: that a turn takes, roughly; 0: a turn is one run, of what takes long.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for turn in range(rounds):
        for name in names if turn % 2 == 0 else reversed(names):
            times[name].append(timed(runs[name], clock, seconds))
    return times
