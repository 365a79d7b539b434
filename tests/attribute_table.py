"""Tables of dataclass attributes, from their docstrings.

python -m tests.attribute_table        # rewrites the tables of docs/files.md
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from minicache.exporter.plan import Group, Plan
from minicache.runtime.manifest import Manifest, StateTensor

DOCUMENT = Path(__file__).parents[1] / "docs" / "files.md"
CLASSES: dict[str, type] = {one.__name__: one for one in (Manifest, StateTensor, Plan, Group)}
_ENTRY = re.compile(r"^(\w+): (.*?)(?=^\w+: |\Z)", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def attribute_table(kind: type) -> str:
    """A Markdown table of the ``Attributes`` section of a class."""
    text = textwrap.dedent((kind.__doc__ or "").split("Attributes:\n")[1]).strip()
    rows = ["| field | meaning |", "| --- | --- |"]
    for name, meaning in _ENTRY.findall(text):
        words = " ".join(meaning.split()).replace("``", "`").replace("|", "\\|").rstrip(".")
        rows.append(f"| `{name}` | {words} |")
    return "\n".join(rows) + "\n"


def with_tables(document: str) -> str:
    """The document with every marked table made anew."""
    return _MARK.sub(
        lambda found: found[1] + attribute_table(CLASSES[found[2]]) + found[3], document
    )


if __name__ == "__main__":
    DOCUMENT.write_text(with_tables(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
