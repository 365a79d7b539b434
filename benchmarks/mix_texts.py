"""Makes a calibration text of several kinds: some documents of each, from the start of the files.

Held-out documents come from behind ``bench_quality.py --skip-fraction``; what is taken here lies
before it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

FORM_FEED = "\f"


def mix(texts: list[str], fraction: float, documents: int, longest: int) -> str:
    """Documents of all texts in turn.

    Args:
        texts: each with documents separated by form feeds.
        fraction: of each text that may be taken.
        documents: of each text, spread evenly over that part.
        longest: characters of a document; longer ones are cut.
    """
    chosen = []
    for text in texts:
        # The last document is cut where the fraction ends.
        found = text[: int(fraction * len(text))].split(FORM_FEED)
        pieces = [
            part[start : start + longest].strip()
            for part in (found[:-1] or found)
            for start in range(0, len(part), longest)
        ]
        long = [piece for piece in pieces if len(piece) > longest // 2]
        count = min(documents, len(long))
        chosen.append([long[index * len(long) // count] for index in range(count)])
    turns = max(map(len, chosen), default=0)
    parts = [kind[turn] for turn in range(turns) for kind in chosen if turn < len(kind)]
    return FORM_FEED.join(parts) + "\n"


def main(argv: list[str] | None = None) -> int:
    """Writes the text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", type=Path, nargs="+", help="UTF-8, form feeds between documents")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--fraction", type=float, default=0.4, help="of each text to take from")
    parser.add_argument("--documents", type=int, default=28, help="of each text")
    parser.add_argument("--characters", type=int, default=8000, help="of each document")
    arguments = parser.parse_args(argv)
    texts = [path.read_text(encoding="utf-8") for path in arguments.texts]
    mixed = mix(texts, arguments.fraction, arguments.documents, arguments.characters)
    arguments.output.write_text(mixed, encoding="utf-8")
    print(f"{arguments.output}: {mixed.count(FORM_FEED) + 1} documents, {len(mixed)} characters")
    return 0


if __name__ == "__main__":
    sys.exit(main())
