"""Damages model folders in many ways and tells what the exporter makes of each.

    python benchmarks/fuzz_models.py --cases 2000 --seed 0 --folder tests/fixtures
    python benchmarks/fuzz_models.py --one 1234 --folder tests/fixtures

Every case must end in a rewritten graph whose parity is proved, or in an error of our own family.
The exit code is 1 when one does not. Each case runs in a process of its own (Linux).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy: cases are forked
sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.exporter.fuzz_case import Outcome, run_case, to_json
from tests.exporter.mutations import CATALOGUE, case_of, find_fixtures


def main(argv: list[str] | None = None) -> int:
    """Runs the cases and prints a summary."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=500, help="number of damaged models")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first case")
    parser.add_argument("--folder", type=Path, default=Path("tests/fixtures"), help="of fixtures")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds until a case hangs")
    parser.add_argument("--minutes", type=float, help="stop after so many, whatever --cases says")
    parser.add_argument("--one", type=int, metavar="SEED", help="run one case, tell all of it")
    parser.add_argument("--log", type=Path, help="file that gets a JSON line per case")
    arguments = parser.parse_args(argv)
    fixtures = find_fixtures(arguments.folder)
    if arguments.one is not None:
        outcome = run_case(case_of(arguments.one, fixtures), arguments.folder, arguments.limit)
        print(json.dumps(json.loads(to_json(outcome)), indent=1))
        return int(outcome.wrong)
    outcomes: list[Outcome] = []
    started = time.monotonic()
    for seed in range(arguments.seed, arguments.seed + arguments.cases):
        if arguments.minutes and time.monotonic() - started > 60 * arguments.minutes:
            break
        outcomes.append(run_case(case_of(seed, fixtures), arguments.folder, arguments.limit))
        if arguments.log:
            with arguments.log.open("a") as log:
                log.write(to_json(outcomes[-1]) + "\n")
        if outcomes[-1].wrong:
            print(_line(outcomes[-1]), flush=True)
    summarise(outcomes, len(fixtures), time.monotonic() - started)
    return int(any(outcome.wrong for outcome in outcomes))


def _line(outcome: Outcome) -> str:
    names = "+".join(outcome.names)
    return (
        f"seed {outcome.seed}: {outcome.kind} {outcome.error} ({names} on {outcome.fixture}): "
        f"{outcome.message}"
    )


def summarise(outcomes: list[Outcome], fixtures: int, seconds: float) -> None:
    """Prints the numbers of a run."""
    print(
        f"{len(outcomes)} damaged models ({len(CATALOGUE)} mutations, {fixtures} fixtures) "
        f"in {seconds:.0f} s"
    )
    kinds = Counter(outcome.kind for outcome in outcomes)
    for kind in ("rewritten", "refused", "untyped", "crash", "hang", "broken promise"):
        print(f"  {kind}: {kinds[kind]}")
    for error, count in Counter(o.error for o in outcomes if o.kind == "refused").most_common():
        print(f"    {error}: {count}")
    if outcomes:
        slowest = max(outcomes, key=lambda outcome: outcome.seconds)
        print(f"  slowest: {slowest.seconds:.1f} s, seed {slowest.seed}, {slowest.names}")


if __name__ == "__main__":
    sys.exit(main())
