"""Is a fact far back still read exactly? Two 6-digit codes in a text, one is asked for.

The text is read in one call, the question in calls of at most CHUNK tokens and the answer token by
token, so that the fact is read from codes. Cases that the original does not answer exactly say
nothing about a cache and are left out. An answer is exact when each of its tokens is the likeliest
one: what greedy decoding would generate.

    python benchmarks/bench_needle.py OUT_EXACT ours=OUT --baseline kivi-int2 --text prose.txt
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from configurations import BASELINES, FITTED, Baselines, Configuration, exported, named_path
from held_out import pick_documents, split_text
from models import Model, Original
from needle import NeedleCase, make_case
from row_store import Row, RowStore, digest, folder_digest

from minicache.runtime.metrics import log_softmax

CALIBRATION_TOKENS = 1024


def parse() -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("original", type=Path, help="folder that --mode exact wrote")
    parser.add_argument("exports", type=named_path, nargs="*", metavar="NAME=FOLDER")
    parser.add_argument("--baseline", action="append", default=[], choices=BASELINES)
    parser.add_argument("--text", type=Path, required=True, help="UTF-8, hides the facts")
    parser.add_argument(
        "--skip-fraction", type=float, default=0.55,
        help="first part of the text, which calibrations may have seen; static baselines do",
    )  # fmt: skip
    parser.add_argument("--calibration-documents", type=int, default=8)
    parser.add_argument("--contexts", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--cases", type=int, default=16, help="of each context")
    parser.add_argument("--chunk", type=int, default=16)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--resume", action="store_true", help="extend the .jsonl beside --json")
    given = parser.parse_intermixed_args()  # NAME=FOLDER anywhere
    if given.resume and not given.json:
        parser.error("--resume needs --json")
    if min(given.cases, given.chunk, *given.contexts) < 1:
        parser.error("--cases, --chunk and --contexts must be 1 or more")
    names = [name for name, _ in given.exports] + given.baseline
    if len(set(names)) < len(names):
        parser.error("two configurations have the same name")
    return given


def ask(model: Model, case: NeedleCase, chunk: int) -> Row:
    """Reads a case; returns whether the answer is exact, and its negative log likelihood."""
    logits = model.start(np.array(case.text, np.int64))
    question = np.array([case.question], np.int64)
    for start in range(0, question.shape[1], chunk):
        logits = model.forward(question[:, start : start + chunk])[0]
    loss, exact = 0.0, True
    for index, token in enumerate(case.answer):
        found = log_softmax(logits[-1])
        loss -= float(found[token])
        exact = exact and int(found.argmax()) == token
        if index + 1 < len(case.answer):
            logits = model.forward(np.array([[token]], np.int64))[0]
    return {"exact": exact, "loss": loss, "tokens": len(case.answer), "depth": case.depth}


def measure(
    cases: list[NeedleCase],
    original: Original,
    configurations: list[Configuration],
    store: RowStore,
    settings: Row,
) -> dict[str, list[Row]]:
    """Rows of the cases that the original answers; runs only what the store does not hold."""
    rows: dict[str, list[Row]] = {"original": [], **{item.name: [] for item in configurations}}
    for case in cases:
        ids = np.array(case.text + case.question + case.answer, np.int64)
        key = {**settings, "context": case.context, "document": digest(ids.tobytes())}
        wanted = store.find(**key, identity=settings["original"])
        if wanted is None:
            wanted = {**key, "identity": settings["original"], "name": "original"}
            wanted |= ask(original, case, settings["chunk"])
            store.add(wanted)
        right = []
        # What the original misses, no cache is asked.
        for item in configurations if wanted["exact"] else ():
            row = store.find(**key, identity=item.identity)
            if row is None:
                row = {**key, "identity": item.identity, "name": item.name}
                row |= ask(item.model, case, settings["chunk"])
                store.add(row)
            rows[item.name].append(row)
            right += [item.name] if row["exact"] else []
        rows["original"] += [wanted] if wanted["exact"] else []
        shown = f"answered by {', '.join(right) or 'no configuration'}"
        print(
            f"{case.context} {case.seed}: {shown if wanted['exact'] else 'the original misses it'}",
            flush=True,
        )
    return rows


def main() -> None:
    """Measures what is missing, then prints the table."""
    given = parse()
    store = RowStore(given.json and given.json.with_suffix(".jsonl"), resume=given.resume)
    capacity = max(given.contexts)
    original = Original(given.original, capacity, given.threads)
    tokenizer = original.session.tokenizer
    before, after = split_text(given.text, given.skip_fraction)
    seen = []
    if any(name.startswith(FITTED) for name in given.baseline):
        length = min(CALIBRATION_TOKENS, capacity)
        seen = pick_documents(before, tokenizer, length, given.calibration_documents)
    cases = [
        make_case(after, tokenizer, context, seed)
        for context in given.contexts
        for seed in range(given.cases)
    ]
    settings: Row = {"original": folder_digest(given.original), "chunk": given.chunk}
    calibrated = digest(*(np.asarray(ids, np.int64).tobytes() for ids in seen))
    baselines = Baselines(original, seen, calibrated, capacity)
    configurations = [
        exported(name, folder, folder_digest(folder), capacity, given.threads)
        for name, folder in given.exports
    ] + [baselines.configuration(name) for name in given.baseline]
    rows = measure(cases, original, configurations, store, settings)

    bits = {"original": "", **{item.name: f"{item.bits:.3f}" for item in configurations}}
    print(f"\nexact answers of those that the original gives ({given.cases} cases per context)")
    columns = " ".join(f"{context:>9}" for context in given.contexts)
    print(f"{'configuration':24} {'bits':>6} {columns} {'all':>9} {'NLL per token':>14}")
    table: dict[str, Row] = {}
    for name, found in rows.items():
        counts = {
            context: [row["exact"] for row in found if row["context"] == context]
            for context in given.contexts
        }
        tokens = sum(row["tokens"] for row in found)
        loss = sum(row["loss"] for row in found) / tokens if tokens else float("nan")
        table[name] = {
            "exact": {str(context): sum(right) for context, right in counts.items()},
            "cases": {str(context): len(right) for context, right in counts.items()},
            "nll": loss,
        }
        cells = " ".join(f"{f'{sum(r)}/{len(r)}':>9}" for r in counts.values())
        every = f"{sum(row['exact'] for row in found)}/{len(found)}"
        print(f"{name:24} {bits[name]:>6} {cells} {every:>9} {loss:14.4f}")
    if given.json:
        result = {**settings, "contexts": given.contexts, "configurations": table}
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
