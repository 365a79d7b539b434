"""Continues several texts side by side on one engine: `generate_batch.py FOLDER TEXT [TEXT ...]`.

Any exported folder will do, of whatever target: a session has the same calls on all of them.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

from minicache.runtime import Session
from minicache.runtime.errors import MiniCacheError


def continue_texts(session: Session, texts: list[str], new_tokens: int) -> tuple[list[str], float]:
    """Continues each text greedily; returns the new parts and the seconds per step."""
    encoded = [session.tokenizer.encode(text) for text in texts]
    lengths = np.array([len(ids) for ids in encoded], np.int32)
    padded = np.zeros((len(encoded), lengths.max()), np.int64)
    for row, ids in enumerate(encoded):
        padded[row, : len(ids)] = ids  # padding lies on the right, and is never read
    chosen = [session.prefill(padded, lengths).argmax(axis=-1)]
    started = time.perf_counter()
    for _ in range(new_tokens - 1):
        logits = session.forward(chosen[-1][:, None])  # [B, 1, V]
        chosen.append(logits[:, 0].argmax(axis=-1))
    seconds = (time.perf_counter() - started) / max(new_tokens - 1, 1)
    ends = set(session.manifest.eos_token_ids)
    results = []
    for row in np.stack(chosen, axis=1).tolist():
        stop = next((index for index, token in enumerate(row) if token in ends), len(row))
        results.append(session.tokenizer.decode(row[:stop]))
    return results, seconds


def main() -> int:
    """Runs the sample; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="what minicache-export wrote, engine included")
    parser.add_argument("texts", nargs="+", metavar="TEXT", help="to continue")
    parser.add_argument("--max-new-tokens", type=int, default=32, metavar="N")
    arguments = parser.parse_args()
    try:
        with Session(arguments.folder, batch_size=len(arguments.texts)) as session:
            results, seconds = continue_texts(session, arguments.texts, arguments.max_new_tokens)
    except MiniCacheError as error:
        print(f"generate_batch.py: {error}", file=sys.stderr)
        return error.exit_code
    for text, result in zip(arguments.texts, results, strict=True):
        print(f"{text}{result}\n")
    print(f"{len(results)} texts, {1000 * seconds:.1f} ms per step", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
