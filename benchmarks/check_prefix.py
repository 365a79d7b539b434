"""Proof that saved, loaded, forked and rewound rows go on as they would have, with sizes.

python benchmarks/check_prefix.py OUT ... --tokens 600 --drift 2000

Per export: the file's size beside the row's bytes; greedy continuations of the saved row, of a
loaded one (another capacity and row) and of forks; files that must be refused; logits after going
back by 1 token, the slack and more, beside a fresh run. ``--drift`` samples so many tokens and
compares the growth of the process's own memory with that of the state.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.process_memory import anonymous_bytes
from minicache.runtime import Session, StateFileError
from minicache.runtime.corpus import read_text
from minicache.runtime.sampling import Sampler, SamplingOptions
from minicache.runtime.state_file import write_state

NEW = 8  # tokens of a continuation
SETTLED = 200  # steps before memory is looked at
TOLERANCE = 2e-4  # of max |logit|, fp32


def continued(rows: Any, first: int) -> list[int]:
    """The next tokens of one row, greedily, from a token that is chosen already."""
    tokens = [first]
    for _ in range(NEW):
        tokens.append(int(rows.forward([tokens[-1:]], logits="last").argmax()))
    return tokens


def refused(action: Callable[[], None]) -> bool:
    """Whether an action is refused as it should be."""
    try:
        action()
    except StateFileError:
        return True
    return False


def check_files(folder: Path, ids: list[int], threads: int | None, scratch: Path) -> bool:
    """Prints sizes and outcomes of save, load and fork."""
    path, broken = scratch / "prefix", scratch / "broken"
    with Session(folder, batch_size=3, threads=threads) as session:
        first = int(session.rows(0).prefill(ids).argmax())
        session.save(path)
        session.fork(0, [1, 2])
        expected = continued(session.rows(0), first)
        forks = [continued(session.rows(row), first) for row in (1, 2)]
        row, used = session.cache_bytes // 3, session.row_bytes(len(ids))
    capacity = -(-(len(ids) + NEW) // 16) * 16
    with Session(folder, batch_size=2, max_sequence_length=capacity, threads=threads) as session:
        session.load(path, 1)
        loaded = continued(session.rows(1), first)
        good, other = path.read_bytes(), dataclasses.replace(session.snapshot(1), model="0" * 64)
        write_state(other, broken)
        outcomes = [refused(lambda: session.load(broken))]
        for bad in (good[:-1], good[: len(good) // 3], good[:-9] + b"\xaa" + good[-8:], b""):
            broken.write_bytes(bad)
            outcomes.append(refused(lambda: session.load(broken)))
        fine = expected == forks[0] == forks[1] == loaded and all(outcomes)
    print(
        f"{folder.name}: {len(ids)} tokens, file {path.stat().st_size / 1e6:.2f} MB, slots used "
        f"{used / 1e6:.2f} MB, row of full capacity {row / 1e6:.2f} MB; {NEW} tokens after load "
        f"and two forks {'are those' if fine else 'ARE NOT THOSE'} of the saved row; "
        f"{sum(outcomes)} of {len(outcomes)} bad files refused",
        flush=True,
    )
    return fine


def check_rewind(folder: Path, ids: list[int], threads: int | None) -> bool:
    """Prints how far logits after going back are from those of a fresh run."""
    worst = 0.0
    with Session(folder, threads=threads) as session, Session(folder, threads=threads) as fresh:
        slack = session.manifest.rewind_slack
        for back in (1, slack, slack + 50):
            length = len(ids) - slack
            session.reset()
            session.prefill(ids[:length])
            fresh.reset()
            if back <= slack:
                session.forward([ids[length : length + back]])
                session.rewind(back)
                fresh.prefill(ids[:length])
            else:
                session.rewind(back, refill=True)
                length -= back
                fresh.prefill(ids[:length])
            ours, theirs = (each.forward([ids[length : length + 4]]) for each in (session, fresh))
            worst = max(worst, float(np.abs(ours - theirs).max() / np.abs(theirs).max()))
    print(
        f"{folder.name}: after going back by 1, {slack} and {slack + 50} tokens logits differ from "
        f"a fresh run's by at most {worst:.1e} of max |logit|",
        flush=True,
    )
    return worst <= TOLERANCE


def check_drift(folder: Path, steps: int, threads: int | None) -> None:
    """Prints the growth of memory in a long generation, beside that of the state."""
    sampler = Sampler(SamplingOptions(temperature=1.0, seed=0))
    with Session(folder, threads=threads) as session:
        logits = session.prefill([1, 2, 3])[0]
        before = held = 0
        for step in range(steps):
            if step == SETTLED:  # arenas and thread pools have what they need
                before, held = anonymous_bytes(), session.row_bytes(int(session.lengths[0]))
            logits = session.forward([[sampler.choose(logits)]], logits="last")[0, 0]
        grown = anonymous_bytes() - before
        state = session.row_bytes(int(session.lengths[0])) - held
    print(
        f"{folder.name}: from token {SETTLED} to token {steps} of a sampled text memory grew by "
        f"{grown / 1e6:.2f} MB, the state by {state / 1e6:.2f} MB",
        flush=True,
    )


def main(words: Sequence[str] | None = None) -> None:
    """Exits with 1 if something is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+", metavar="OUT")
    parser.add_argument("--tokens", type=int, default=600)
    parser.add_argument("--drift", type=int, default=0, help="tokens to sample, over 200; 0: none")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--text", type=Path, help="UTF-8; None: the text that ships with us")
    arguments = parser.parse_args(words)
    fine = True
    for folder in arguments.folders:
        with Session(folder, max_sequence_length=16) as session:
            document = session.tokenizer.encode_documents(read_text(arguments.text))[0]
        ids = document[: arguments.tokens]
        with tempfile.TemporaryDirectory() as scratch:
            fine &= check_files(folder, ids, arguments.threads, Path(scratch))
        fine &= check_rewind(folder, ids, arguments.threads)
        if arguments.drift:
            check_drift(folder, arguments.drift, arguments.threads)
    sys.exit(not fine)


if __name__ == "__main__":
    main()
