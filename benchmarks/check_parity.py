"""Proof of exact mode on real text: prefill and decode, batch 1 and a ragged batch of 3.

python benchmarks/check_parity.py MODEL OUT_EXACT --prefill 256 --steps 32
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from minicache.exporter.parity import check_parity
from minicache.runtime.corpus import read_text
from minicache.runtime.manifest import Manifest
from minicache.runtime.tokenizer import TextTokenizer


def main() -> None:
    """Prints one row per case; a difference beyond the tolerance raises."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("original", type=Path)
    parser.add_argument("exported", type=Path, help="made by --mode exact")
    parser.add_argument("--text", type=Path, help="UTF-8; None: the text that ships with us")
    parser.add_argument("--prefill", type=int, default=256)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    tokenizer = TextTokenizer(arguments.exported)
    document = tokenizer.encode_documents(read_text(arguments.text))[0]
    ids = document[: arguments.prefill + arguments.steps]
    report = check_parity(
        arguments.original,
        arguments.exported,
        Manifest.load(arguments.exported).dtype,
        tokens=np.asarray(ids, np.int64),
        steps=arguments.steps,
    )
    print(f"{'case':14} {'tokens':>7} {'max |dlogit|':>13} {'of max |logit|':>15} {'top-1':>8}")
    for case in report.cases:
        share = case.max_difference / case.max_logit
        print(
            f"{case.name:14} {case.tokens:7} {case.max_difference:13.2e} {share:15.2e} "
            f"{case.top1_agreement:8.2%}"
        )
    print(f"tolerance {report.tolerance:g} of max |logit|; {'; '.join(report.notes)}")
    if arguments.json:
        arguments.json.write_text(json.dumps(report.to_dict(), indent=1) + "\n")


if __name__ == "__main__":
    main()
