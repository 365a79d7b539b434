"""``report.html``: one file that holds everything, whatever the content holds."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from minicache.exporter.reporting.html_report import render, write_html
from minicache.exporter.reporting.svg_labels import LabelPlacer
from minicache.exporter.reporting.svg_plot import BOTTOM, LEFT, RIGHT, TOP
from minicache.exporter.reporting.svg_ticks import FEWEST, MOST, linear_axis, log_axis
from tests.exporter.reporting.report_content import (
    exact_content,
    point,
    quality,
    rival,
    subspace_content,
)

VOID = {"meta", "circle", "path"}


class Page(HTMLParser):
    """Collects tags with their attributes and the text; every tag must be closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.words = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.words += data

    def marks(self, kind: str) -> list[tuple[float, float]]:
        """Places of the marks of a class, over all plots."""
        found = []
        for tag, values in self.tags:
            if tag == "g" and {"mark", kind} <= set(values.get("class", "").split()):
                place = re.fullmatch(r"translate\((\S+) (\S+)\)", values["transform"])
                if place and place[1] != "11":  # of the legend
                    found.append((float(place[1]), float(place[2])))
        return found


@pytest.mark.parametrize(
    "content",
    [
        exact_content(),
        exact_content(notes=[], cache_bytes=[], parity=None, command=""),
        subspace_content(),
        subspace_content() | {"frontier": [], "rivals": []},
        subspace_content() | {"quality": None, "rivals": [], "similarity": []},
        exact_content(mode="paper", merged_groups=[[2, 3]], quality=quality()),
        exact_content(mode="paper", quality=quality(), rivals=[rival("kivi-int2", 3.0, 57.1)]),
    ],
    ids=["exact", "bare", "subspace", "given-plan", "not-verified", "paper", "paper-with-rivals"],
)
def test_the_page_is_whole_and_needs_nothing_else(content: dict[str, Any], tmp_path: Path) -> None:
    write_html(content, tmp_path)
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    page = Page(html)
    assert not re.search(r"https?:|//|src=|href=|url\(|@import|<script|<link", html)
    assert content["verdict"] in page.words
    assert "nan" not in html.lower()
    assert "None" not in page.words
    assert content["command"] in page.words


def test_parts_without_data_are_left_out() -> None:
    words = Page(render(exact_content())).words
    for heading in ("What compression costs", "Quality", "Where the bits go", "alike"):
        assert heading not in words
    assert "Parity" in words
    words = Page(render(subspace_content())).words
    for heading in ("What compression costs", "Quality", "Where the bits go", "alike"):
        assert heading in words
    assert "8 × 8 bit + 24 × 4 bit + 16 × 2 bit" in words


def test_what_users_name_is_text_and_never_markup() -> None:
    evil = '<script>alert("x")</script>&amp;\'"'
    content = subspace_content(notes=[evil], command=f"minicache-export '{evil}' -o out")
    content |= {"model": evil, "output": evil, "target": evil, "verdict": f"Fine: {evil}"}
    content["rivals"][0]["name"] = evil
    content["frontier"][0]["structure"] = evil
    content["parity"]["cases"][0]["name"] = content["parity"]["notes"] = evil
    content["parity"]["notes"] = [evil]
    html = render(content)
    page = Page(html)
    assert "<script" not in html
    assert "script" not in {tag for tag, _ in page.tags}
    # h1, title, under, verdict, notes, command, rival in table and plots, structure, parity
    assert page.words.count(evil) >= 10


def test_every_measured_plan_is_a_mark_on_each_plot() -> None:
    content = subspace_content()
    page = Page(render(content))
    assert len(page.marks("search")) == 2 * len(content["frontier"])
    assert len(page.marks("chosen")) == 2
    assert len(page.marks("rival")) == 2 * len(content["rivals"])
    assert len(page.marks("export")) == 2


def test_marks_lie_where_their_numbers_say() -> None:
    content = subspace_content()
    page = Page(render(content))
    search = page.marks("search")[:3]  # in order of drawing: the chosen one last
    by_ratio = [search[0], search[2], search[1]]
    assert [x for x, _ in by_ratio] == sorted(x for x, _ in by_ratio)
    heights = [y for _, y in by_ratio]
    assert heights == sorted(heights, reverse=True)  # SVG counts downwards
    # The axis is logarithmic: equal ratios, equal distances.
    (int8, _), (int2, _) = page.marks("rival")[:2]
    per_log = (int2 - int8) / math.log(8 / 3)
    assert by_ratio[2][0] - by_ratio[0][0] == pytest.approx(per_log * math.log(2), abs=0.3)


@pytest.mark.parametrize("value", [None, math.nan, math.inf, 1e9, 0.0, -1.0])
def test_numbers_that_cannot_be_drawn_stay_inside_the_plot(value: float | None) -> None:
    content = subspace_content()
    odd = dict.fromkeys(
        ("kl", "perplexity_ratio", "perplexity_ratio_low", "perplexity_ratio_high"), value
    )
    content["frontier"].append(point(10.0, 0.1, **odd))
    content["rivals"].append(rival("odd", 2.0, 1.0, perplexity_ratio=value, kl_mean=value))
    content["quality"] |= {"perplexity_ratio_low": 0.0, "perplexity_ratio_high": math.inf}
    html = render(content)
    page = Page(html)
    assert len(page.marks("search")) == 8
    assert len(page.marks("rival")) == 6
    for x, y in page.marks("mark"):
        assert LEFT <= x <= RIGHT
        assert TOP <= y <= BOTTOM
    assert not re.search(r"\b(nan|inf)\b", html)


def test_an_interval_without_bounds_has_no_bar() -> None:
    content = subspace_content() | {"rivals": []}
    for row in (*content["frontier"], content["quality"]):
        row["perplexity_ratio_low"], row["perplexity_ratio_high"] = 0.0, math.inf
    html = render(content)
    assert 'class="bar"' not in html
    assert "no interval" in html
    assert 'class="bar"' in render(subspace_content())


def test_a_single_pair_of_layers_and_missing_cosines_are_drawn() -> None:
    one = [{"layers": [0, 1], "key_cosine": 0.5, "value_cosine": None}]
    assert "line keys" in render(subspace_content() | {"similarity": one})
    none = [{"layers": [0, 1], "key_cosine": None, "value_cosine": None}]
    assert "How alike" not in Page(render(subspace_content() | {"similarity": none})).words


def test_gaps_in_a_profile_part_its_line() -> None:
    page = Page(render(subspace_content()))
    lines = [values["d"] for tag, values in page.tags if tag == "path" and "L" in values["d"]]
    keys = next(values for tag, values in page.tags if values.get("d", "").count("M") == 2)
    assert "L" not in keys["d"]  # two points, neither beside the other
    assert any(line.count("L") == 2 for line in lines)  # values have all three


@pytest.mark.parametrize("low, high", [(1e-12, 10.0), (2.0, 2.5), (3.1, 3.2), (1.7, 13.0)])
def test_axes_have_few_and_round_ticks_within(low: float, high: float) -> None:
    axes = (
        log_axis("x", low, high, str),
        linear_axis("x", low, high, lambda value, _: f"{value:g}"),
    )
    for axis in axes:
        assert len(axis.ticks) <= MOST
        for value, _ in axis.ticks:
            assert low - 1e-9 <= value <= high + 1e-9
        assert len(axis.ticks) >= FEWEST


def test_labels_keep_off_each_other_and_inside() -> None:
    area = (0.0, 0.0, 400.0, 300.0)
    spots = [(395.0, 150.0), (200.0, 150.0), (205.0, 152.0)]
    placer = LabelPlacer(area, [(x - 6, y - 6, x + 6, y + 6) for x, y in spots])
    boxes = [placer.beside("some label", x, y).box("some label") for x, y in spots]
    for index, (left, top, right, bottom) in enumerate(boxes):
        assert 0 <= left < right <= 400
        for other in boxes[:index]:
            apart = other[2] <= left or right <= other[0] or other[3] <= top or bottom <= other[1]
            assert apart
