"""``report.json``, the verdict, and what an export prints."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from minicache.exporter.reporting import number_text, report
from minicache.runtime.evaluate import EvaluationResult
from tests.exporter.reporting.report_content import exact_content, quality, subspace_content

EVALUATION = EvaluationResult(**quality())


def printed(content: dict[str, object], folder: Path = Path("out"), width: int = 80) -> str:
    console = Console(markup=False, width=width, record=True, file=io.StringIO())
    report.print_report(content, folder, console)
    return console.export_text()


def test_the_verdict_names_the_loss_and_its_interval() -> None:
    words = report.verdict(EVALUATION, mode="subspace", lossy=True)
    assert words == (
        "Held-out text: perplexity 14.21 -> 14.33 (x 1.008, 95 % interval 1.004 to 1.013), within "
        "1 % of the original."
    )


def test_the_verdict_without_an_interval() -> None:
    alone = replace(EVALUATION, perplexity_ratio_low=None, perplexity_ratio_high=None)
    assert "(x 1.008)" in report.verdict(alone, mode="paper", lossy=True)


def test_a_small_loss_is_called_so() -> None:
    words = report.verdict(replace(EVALUATION, perplexity_ratio=1.05), mode="subspace", lossy=True)
    assert words.endswith("a small but measurable loss.")


@pytest.mark.parametrize("ratio", [1.2, 1e6, math.inf, math.nan])
def test_a_ruinous_loss_warns_with_what_the_mode_can_do(ratio: float) -> None:
    ruined = replace(EVALUATION, perplexity_ratio=ratio)
    paper = report.verdict(ruined, mode="paper", lossy=True)
    subspace = report.verdict(ruined, mode="subspace", lossy=True)
    assert paper.startswith("WARNING") and subspace.startswith("WARNING")
    assert "merge" in paper
    assert "merge" not in subspace
    assert "--ratio" in subspace and "--max-kl" in subspace


def test_what_was_not_measured_or_not_lossy_says_so() -> None:
    assert "not measured" in report.verdict(None, mode="subspace", lossy=True)
    assert "stored exactly" in report.verdict(None, mode="exact", lossy=False)


def test_a_search_prints_its_three_tables_within_80_columns() -> None:
    content = subspace_content()
    text = printed(content)
    assert max(map(len, text.splitlines())) <= 80
    for words in ("Quality on held-out text", "this export", "static-int8", "kivi-int2"):
        assert words in text
    assert "Plans that the search measured" in text
    (chosen,) = (line for line in text.splitlines() if line.startswith("G=2, apart *"))
    assert "6.40 x" in chosen
    for point in content["frontier"]:
        assert f"{point['ratio']:.2f} x" in text
        assert f" {point['bytes_read']} " in text
    assert "…" not in text  # nothing was cut off
    assert "merg" not in text
    assert str(Path("out") / "report.html") in text


def test_an_exact_export_prints_its_size_only() -> None:
    text = printed(exact_content())
    assert "188.74 MB" in text
    assert "Quality" not in text
    assert "Parity" in text


def test_open_intervals_and_missing_numbers_are_dashes() -> None:
    content = subspace_content()
    content["rivals"][0] |= {"perplexity_ratio": None, "perplexity_ratio_high": math.inf}
    line = next(line for line in printed(content).splitlines() if "static-int8" in line)
    assert line.split().count("-") == 2


def test_both_files_are_written_and_json_is_strict(tmp_path: Path) -> None:
    content = number_text.finite({**subspace_content(), "odd": [math.inf, (math.nan, 1.0)]})
    report.write_report(content, tmp_path)

    def refuse(word: str) -> None:
        raise AssertionError(word)

    text = (tmp_path / "report.json").read_text(encoding="utf-8")
    assert json.loads(text, parse_constant=refuse) == content
    assert content["odd"] == [None, [None, 1.0]]
    assert (tmp_path / "report.html").is_file()


@pytest.mark.parametrize(
    "text, expected",
    [
        (number_text.factor(1.00349), "x 1.003"),
        (number_text.factor(57.13), "x 57.1"),
        (number_text.factor(math.nan), "-"),
        (number_text.smaller(4.8666), "4.87 x"),
        (number_text.interval(0.9981, 1.0052), "0.998 to 1.005"),
        (number_text.interval(0.0, math.inf), "-"),
        (number_text.interval(None, None), "-"),
        (number_text.percent(0.98123), "98.1 %"),
        (number_text.nats(0.00513), "0.0051"),
        (number_text.nats(0.00012), "1.2e-04"),
        (number_text.nats(0.0), "0.0000"),
        (number_text.size(30_390_000), "30.39 MB"),
        (number_text.size(51_200), "51.20 kB"),
        (number_text.size(12), "12 bytes"),
        (number_text.count(8192), "8\N{NO-BREAK SPACE}192"),
    ],
)
def test_numbers_are_written_one_way(text: str, expected: str) -> None:
    assert text == expected


def test_what_to_do_next_is_possible(tmp_path: Path) -> None:
    """A prompt needs a tokenizer, and an engine must be built before anything runs."""
    shown = printed(exact_content(), tmp_path, width=400)
    assert "takes token ids: minicache.runtime.Session(" in shown
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "run it: minicache generate" in printed(exact_content(), tmp_path, width=400)
    shown = printed(exact_content(target="tensorrt"), tmp_path, width=400)
    assert "minicache build-engine" in shown and "generate" not in shown
