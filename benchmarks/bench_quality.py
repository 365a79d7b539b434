"""What do exports and other cache codecs cost in quality? Paired, on held-out documents.

ORIGINAL is an exact-mode export: it was proven to compute the original's logits and stands for it.
Each document is read as decoding would: a prefill in one call, then CHUNK tokens per call, so that
tokens are predicted from codes. Exports run with their kernels; baselines are simulated on the
original's cache (`minicache.exporter.baselines`).

    python benchmarks/bench_quality.py OUT_EXACT ours=OUT --baseline static-int4 \
        --text prose=prose.txt --text docs=docs.txt --json quality.json
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from configurations import BASELINES, FITTED, Baselines, Configuration, exported, named_path
from held_out import Documents, pick_documents, split_text
from models import Ids, Logits, Model, Original
from paired import DocumentRow, Ratio, summarise, versus
from row_store import Row, RowStore, digest, folder_digest

from minicache.runtime.accounting import kv_elements
from minicache.runtime.errors import PlanError, UnsupportedModelError
from minicache.runtime.metrics import Float, kl_divergence, log_softmax

SCORED = 512  # tokens at the end of a long context
CALIBRATION_TOKENS = 1024


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, or what is given instead of it, checked."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("original", type=Path, help="folder that --mode exact wrote")
    parser.add_argument("exports", type=named_path, nargs="*", metavar="NAME=FOLDER")
    parser.add_argument("--baseline", action="append", default=[], choices=BASELINES)
    parser.add_argument(
        "--text", type=named_path, action="append", required=True, metavar="KIND=FILE",
        help="UTF-8, form feeds separate documents; repeatable",
    )  # fmt: skip
    parser.add_argument("--documents", type=int, default=16, help="of each kind")
    parser.add_argument(
        "--skip-fraction", type=float, default=0.55,
        help="first part of each text, which calibrations may have seen; static baselines do",
    )  # fmt: skip
    parser.add_argument("--calibration-documents", type=int, default=4, help="of each kind")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument(
        "--prefill", type=int,
        help=f"default: half the context, or all but {SCORED} tokens of a context above 1024",
    )  # fmt: skip
    parser.add_argument("--chunk", type=int, default=32)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--versus", type=str, action="append", default=[], metavar="NAME:NAME")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--resume", action="store_true", help="extend the .jsonl beside --json")
    given = parser.parse_intermixed_args(arguments)  # NAME=FOLDER anywhere
    if given.prefill is None:
        given.prefill = given.context // 2 if given.context <= 1024 else given.context - SCORED
    if not 0 < given.prefill < given.context or given.chunk < 1:
        parser.error("--prefill must lie below --context, --chunk must be 1 or more")
    if not 0 <= given.skip_fraction < 1:
        parser.error("--skip-fraction must lie in [0, 1)")
    if given.resume and not given.json:
        parser.error("--resume needs --json")
    names = [name for name, _ in given.exports] + given.baseline
    if len(set(names)) < len(names):
        parser.error("two configurations have the same name")
    given.versus = [tuple(pair.split(":")) for pair in given.versus]
    for pair in given.versus:
        if len(pair) != 2 or not set(pair) <= set(names):
            parser.error(f"--versus {':'.join(pair)}: give two of {', '.join(names)}")
    return given


def read_document(model: Model, ids: Ids, prefill: int, chunk: int) -> list[Logits]:
    """Logits ``[S, V]`` of each call that predicts tokens from ``prefill`` on."""
    found = [model.start(ids[:prefill])]
    for start in range(prefill, len(ids) - 1, chunk):  # the last token is only predicted
        found.append(model.forward(ids[None, start : min(start + chunk, len(ids) - 1)])[0])
    return found


def score(targets: Ids, original: list[Float], logits: list[Logits]) -> Row:
    """Sums over the scored tokens; ``original`` holds log probabilities."""
    row: Row = {"tokens": len(targets), "loss": 0.0, "loss_original": 0.0, "kl": 0.0, "agreed": 0}
    at = 0
    for wanted, found in zip(original, logits, strict=True):
        other = log_softmax(found)
        index = np.arange(len(found)), targets[at : at + len(found)]
        row["loss"] -= float(other[index].sum())
        row["loss_original"] -= float(wanted[index].sum())
        row["kl"] += float(kl_divergence(wanted, other).sum())
        row["agreed"] += int((wanted.argmax(axis=-1) == other.argmax(axis=-1)).sum())
        at += len(found)
    return row


def measure(
    original: Original,
    configurations: list[Configuration],
    documents: dict[str, Documents],
    store: RowStore,
    settings: Row,
) -> dict[str, list[DocumentRow]]:
    """Rows of every configuration; runs only what the store does not hold."""
    rows: dict[str, list[DocumentRow]] = {item.name: [] for item in configurations}
    prefill, chunk = settings["prefill"], settings["chunk"]
    for kind, texts in documents.items():
        for number, document in enumerate(texts):
            ids = np.asarray(document, np.int64)
            key = {**settings, "kind": kind, "document": digest(ids.tobytes())}
            log_original: list[Float] = []
            for item in configurations:
                row = store.find(**key, identity=item.identity)
                if row is None:
                    model = item.model  # may use the original's session to fit its scales
                    if not log_original:
                        read = read_document(original, ids, prefill, chunk)
                        log_original = [log_softmax(logits) for logits in read]
                    logits = read_document(model, ids, prefill, chunk)
                    row = {**key, "identity": item.identity, "name": item.name}
                    row |= score(ids[prefill:], log_original, logits)
                    store.add(row)
                fields = dataclasses.fields(DocumentRow)
                rows[item.name].append(DocumentRow(**{f.name: row[f.name] for f in fields}))
            done = [f"{n} {np.exp((r[-1].loss - r[-1].loss_original) / r[-1].tokens):.4f}"
                    for n, r in rows.items()]  # fmt: skip
            print(f"{kind} {number + 1}/{len(texts)}: {', '.join(done)}", flush=True)
    return rows


def interval(ratio: Ratio) -> str:
    """A ratio as the table shows it."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.4f} (one document)"
    return f"{ratio.value:.4f} [{ratio.low:.4f}, {ratio.high:.4f}]"


def made(baselines: Baselines, names: Sequence[str], *, skip: bool) -> Iterator[Configuration]:
    """Baselines by name; those that the model does not allow end the program, or are left out."""
    for name in names:
        try:
            yield baselines.configuration(name)
        except (PlanError, UnsupportedModelError) as error:
            if not skip:
                raise SystemExit(f"{name}: {error}") from error
            print(f"left out {name}: {error}", flush=True)


def run(
    given: argparse.Namespace, *, skip: bool = False
) -> tuple[Row, dict[str, list[DocumentRow]]]:
    """Measures what is missing and prints the table.

    Args:
        given: the command line.
        skip: leave out baselines that the model does not allow.

    Returns:
        What ``--json`` holds, and the documents' rows by configuration.
    """
    store = RowStore(given.json and given.json.with_suffix(".jsonl"), resume=given.resume)
    capacity = max(given.context, min(CALIBRATION_TOKENS, given.context))
    original = Original(given.original, capacity, given.threads)
    tokenizer, manifest = original.session.tokenizer, original.session.manifest
    documents: dict[str, Documents] = {}
    seen: Documents = []
    for kind, path in given.text:
        before, after = split_text(path, given.skip_fraction)
        documents[kind] = pick_documents(after, tokenizer, given.context, given.documents)
        if any(name.startswith(FITTED) for name in given.baseline):
            seen += pick_documents(
                before, tokenizer, min(CALIBRATION_TOKENS, given.context),
                given.calibration_documents,
            )  # fmt: skip
    settings: Row = {
        "original": folder_digest(given.original),
        "prefill": given.prefill,
        "chunk": given.chunk,
    }
    calibrated = digest(*(np.asarray(ids, np.int64).tobytes() for ids in seen))
    baselines = Baselines(original, seen, calibrated, given.prefill)
    generated = given.context - given.prefill
    configurations = [
        exported(name, folder, folder_digest(folder), given.context, given.threads, generated)
        for name, folder in given.exports
    ]
    configurations += made(baselines, given.baseline, skip=skip)
    for item in configurations:
        if item.chunk is not None and given.chunk > item.chunk:
            raise SystemExit(
                f"--chunk {given.chunk} is more than the window of {item.name} ({item.chunk}): "
                "tokens would be predicted from exact ones that decoding codes"
            )
    rows = measure(original, configurations, documents, store, settings)

    fp16 = 2 * kv_elements(manifest, given.context)
    kinds = list(documents)
    result: Row = {**settings, "context": given.context, "kv_bytes_fp16": fp16}
    result |= {"documents": {kind: len(found) for kind, found in documents.items()}}
    table: dict[str, Row] = {}
    print(
        f"\nperplexity ratio to the original, {given.prefill} + "
        f"{given.context - given.prefill} tokens, {given.chunk} per call"
    )
    by_kind = " ".join(f"{kind[:10]:>10}" for kind in kinds)
    print(
        f"{'configuration':24} {'bits':>6} {'bytes':>12} {'x fp16':>7} {by_kind} "
        f"{'mean [95 %]':>26} {'KL':>8} {'top-1':>7}"
    )
    for item in configurations:
        found, size = summarise(rows[item.name]), item.cache_bytes(given.context)
        table[item.name] = {
            "bits_per_element": item.bits,
            "kv_bytes": size,
            "compression_ratio": fp16 / size,
            **dataclasses.asdict(found),
        }
        shown = " ".join(f"{found.by_kind[kind]:10.4f}" for kind in kinds)
        print(
            f"{item.name:24} {item.bits:6.3f} {size:12,} {fp16 / size:7.2f} {shown} "
            f"{interval(found.ratio):>26} {found.kl:8.5f} {found.top1:7.2%}"
        )
    differences = {f"{a}:{b}": versus(rows[a], rows[b]) for a, b in given.versus}
    for pair, ratio in differences.items():
        print(f"perplexity of {pair.replace(':', ' over ')}: {interval(ratio)}")
    result["configurations"] = table
    result["versus"] = {pair: dataclasses.asdict(ratio) for pair, ratio in differences.items()}
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")
    return result, rows


if __name__ == "__main__":
    run(parse())
