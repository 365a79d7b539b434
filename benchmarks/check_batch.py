"""Proof that ragged rows in a batch get the tokens that single runs get.

python benchmarks/check_batch.py OUT ... --rows 8 --new-tokens 24

Each prompt is continued greedily alone, and among the others in a batch of one session, with the
same chunks. Logits of several rows may differ in the last digits from those of one, as matrix
products run in another order; so a row may part from its single run where two tokens are almost
equally likely. Such rows are listed, with the gap between the two best logits of the single run
there as a share of the largest: one above 1e-3 fails. (Exports with int4 weights do fail: ONNX
Runtime's MatMulNBits treats one row and several rows differently.)
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from minicache.runtime import Batch, Session
from minicache.runtime.corpus import read_text

LARGEST_GAP = 1e-3  # of max |logit|


@dataclass
class SingleRun:
    """Greedy tokens of a prompt on its own, and how clear each choice was.

    Attributes:
        tokens: new token ids.
        gaps: best minus second best logit, as a share of the largest absolute one.
    """

    tokens: list[int]
    gaps: list[float]


def run_alone(session: Session, prompt: list[int], count: int, chunk: int) -> SingleRun:
    """Continues a prompt without a batch."""
    session.reset()
    run = SingleRun([], [])
    logits = session.prefill(prompt, chunk=chunk)[0]
    while True:
        second, best = np.partition(logits, -2)[-2:]
        run.gaps.append(float((best - second) / np.abs(logits).max()))
        run.tokens.append(int(logits.argmax()))
        if len(run.tokens) == count or run.tokens[-1] in session.manifest.eos_token_ids:
            return run
        logits = session.forward([run.tokens[-1:]], logits="last")[0, 0]


def run_together(
    session: Session, prompts: list[list[int]], count: int, chunk: int
) -> list[list[int]]:
    """Continues prompts in a batch; they come one after another, as rows are free."""
    batch, places = Batch(session, chunk=chunk), {}
    found: list[list[int]] = [[] for _ in prompts]
    waiting = list(range(len(prompts)))
    while waiting or batch.active:
        if waiting and batch.free_rows:
            place = waiting.pop(0)
            places[batch.add(prompts[place], count)] = place
        for request, token in batch.step():
            found[places[request]].append(token.token_id)
    return found


def differ_by_rows(session: Session, prompt: list[int]) -> float:
    """Largest difference of a logit between a call of one row and one of all, equal rows.

    As a share of the largest absolute logit, over four tokens behind a prompt.
    """
    session.reset()
    one = session.rows(0)
    logits, worst = one.prefill(prompt)[0], 0.0
    session.fork(0, range(session.batch_size))
    for _ in range(4):
        token = int(logits.argmax())
        logits = one.forward([[token]], logits="last")[0, 0].copy()
        one.rewind(1)
        together = session.forward([[token]] * session.batch_size, logits="last")[:, 0]
        worst = max(worst, float(np.abs(together - logits).max() / np.abs(logits).max()))
    return worst


def check(folder: Path, arguments: argparse.Namespace) -> bool:
    """Prints a line, and one for each row that differs; returns whether that is all right."""
    size = {"threads": arguments.threads}
    with Session(folder, **size) as session:
        ids = session.tokenizer.encode_documents(read_text(arguments.text))[0]
        lengths = np.linspace(3, arguments.longest, arguments.prompts).astype(int)
        np.random.default_rng(0).shuffle(lengths)
        starts = np.cumsum([0, *lengths[:-1]])
        prompts = [ids[a : a + n] for a, n in zip(starts, lengths, strict=True)]
        counts = arguments.new_tokens
        alone = [run_alone(session, p, counts, arguments.chunk) for p in prompts]
    with Session(folder, batch_size=arguments.rows, **size) as session:
        together = run_together(session, prompts, counts, arguments.chunk)
        apart = differ_by_rows(session, prompts[0])
    fine, same = True, 0
    differing = []
    for row, (one, many) in enumerate(zip(alone, together, strict=True)):
        if one.tokens == many:
            same += 1
            continue
        pairs = zip(one.tokens, many, strict=False)
        place = next(i for i, (a, b) in enumerate(pairs) if a != b)
        fine &= one.gaps[place] < LARGEST_GAP
        differing.append((row, place, one.gaps[place]))
    tokens = sum(len(run.tokens) for run in alone)
    print(
        f"{folder.name}: {same} of {len(prompts)} prompts ({min(lengths)} to {max(lengths)} "
        f"tokens, {arguments.rows} rows) give the same {tokens} tokens as alone; "
        f"logits of 1 row and of {arguments.rows} equal rows differ by {apart:.1e} of the largest",
        flush=True,
    )
    for row, place, gap in differing:
        print(
            f"  prompt {row} parts at new token {place}, where the gap is {gap:.1e} of max |logit|"
        )
    return fine


def main(words: Sequence[str] | None = None) -> None:
    """Exits with 1 if a row parts where its single run was sure."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+", metavar="OUT")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--longest", type=int, default=300, help="tokens of the longest prompt")
    parser.add_argument("--new-tokens", type=int, default=24)
    parser.add_argument("--chunk", type=int, default=128)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--text", type=Path, help="UTF-8; None: the text that ships with us")
    arguments = parser.parse_args(words)
    results = [check(folder, arguments) for folder in arguments.folders]
    sys.exit(not all(results))


if __name__ == "__main__":
    main()
