"""The pages under docs/ say what the code says."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from tests.attribute_table import CLASSES, DOCUMENT, attribute_table, with_tables

DOCS = DOCUMENT.parent
PAGES = sorted(DOCS.glob("*.md"))


def test_the_tables_of_files_are_those_of_the_docstrings() -> None:
    """`python -m tests.attribute_table` makes them."""
    text = DOCUMENT.read_text(encoding="utf-8")
    assert with_tables(text) == text
    for name in CLASSES:
        assert f"<!-- {name} -->\n| field" in text


@pytest.mark.parametrize("kind", CLASSES.values(), ids=lambda kind: kind.__name__)
def test_every_field_is_in_its_docstring(kind: type) -> None:
    assert dataclasses.is_dataclass(kind)
    table = attribute_table(kind)
    fields = {field.name for field in dataclasses.fields(kind)}
    assert {name for name in fields if f"| `{name}` |" in table} == fields


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_the_index_names_every_page() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    assert {page.name for page in PAGES if f"({page.name})" not in index} == {"README.md"}
