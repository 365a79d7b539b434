"""What the ``subspace`` mode cannot do: one sentence, exit code 2, nothing left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from minicache.exporter import pipeline, plan_subspace
from minicache.exporter.cli import export_main
from minicache.exporter.planner.loss_meter import LossMeter
from tests.exporter.subspace_workplace import FIXTURES, Workplace, prose

Refusal = Callable[..., str]


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return Workplace.make(tmp_path, "onnx-llama3-gqa-optimum-fp32")


@pytest.fixture
def refusal(
    place: Workplace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Refusal:
    """Runs the command and returns its sentence; ``early``: before the graph is written."""

    def present() -> list[Path]:
        return [p for p in sorted(place.root.rglob("*")) if place.cache not in (p, *p.parents)]

    def run(*arguments: object, model: Path | None = None, early: bool = True) -> str:
        before = present()
        if early:
            monkeypatch.setattr(pipeline, "check_parity", None)
        words = [model or place.model, "-o", place.root / "out", "--quiet", *arguments]
        if "--max-sequence-length" not in words:
            words += ["--max-sequence-length", 256]
        assert export_main([str(word) for word in words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert present() == before
        assert line.startswith("minicache: ")
        return line

    return run


def test_sliding_windows_alone_are_for_the_exact_mode(refusal: Refusal) -> None:
    """Their cache is bounded already."""
    line = refusal(model=FIXTURES / "onnx-mistral-sw-optimum-fp32")
    assert "all 4 layers attend to a sliding window" in line
    assert "nothing to code; use --mode exact" in line


def test_a_model_without_tokenizer_cannot_be_calibrated(refusal: Refusal) -> None:
    line = refusal(model=FIXTURES / "onnx-llama3-gqa-optimum-fp32")
    assert "holds no tokenizer.json" in line


def test_another_models_tokenizer_is_noticed(place: Workplace, refusal: Refusal) -> None:
    path = place.model / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    content["model"]["vocab"] = {word: number + 9000 for word, number in vocabulary.items()}
    path.write_text(json.dumps(content), encoding="utf-8")
    assert "it is another model's" in refusal()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no tokens"),
        ("too short", "gives 0 documents of 256 tokens"),
        (prose(5, 300), "gives 5 documents of 256 tokens, at least 6"),
        (prose(8, 300), "1024 usable tokens, at least 2048 are needed"),
    ],
    ids=["empty", "tiny", "few", "short"],
)
def test_texts_that_are_too_short(
    place: Workplace, refusal: Refusal, text: str, words: str
) -> None:
    """Told before the long work, with the number that was found."""
    place.text.write_text(text, encoding="utf-8")
    line = refusal("--calibration", place.text)
    assert words in line and "; give a " in line


def test_a_missing_text_is_named(place: Workplace, refusal: Refusal) -> None:
    assert "none.txt" in refusal("--calibration", place.root / "none.txt")


def test_few_tokens_to_calibrate_on_are_refused_early(place: Workplace, refusal: Refusal) -> None:
    """The option may ask for fewer than the text has."""
    line = refusal("--calibration", place.text, "--calibration-tokens", 500, "--no-verify")
    assert "500 usable tokens, at least 2048" in line


def test_a_wrong_plan_is_told_before_the_long_work(place: Workplace, refusal: Refusal) -> None:
    (place.root / "plan.json").write_text("{}", encoding="utf-8")
    line = refusal("--plan", place.root / "plan.json", "--calibration", place.text)
    assert 'has no list "groups"' in line


@pytest.mark.usefixtures("ort_library")
def test_a_plan_of_another_model_is_told_before_the_calibration(
    place: Workplace, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_subspace, "stored_calibration", None)
    coded = {"code_heads": 3, "key_bits_per_element": 4, "value_bits_per_element": 4}
    plan = place.root / "mine.json"
    for layers, words in (
        ([0, 1, 2, 3], "group 0 of the plan: code_heads is 3; give a divisor of the 2 kv heads"),
        ([0, 1], "the plan covers 2 layers, the model has 4"),
    ):
        plan.write_text(json.dumps({"groups": [{"layers": layers, **coded}]}), encoding="utf-8")
        assert words in refusal("--plan", plan, "--calibration", place.text, early=False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ratio", "4", "--kv-bytes-per-token", "100"], "both bound the bytes"),
        (["--ratio", "0.5"], "--ratio is 0.5"),
        (["--code-bits", "4"], "--code-bits 4 has no effect with --mode subspace"),
        (["--window", "100000"], "the window is 100000"),
        (["--sinks", "100000"], "number of sinks is 100000"),
    ],
)
def test_wrong_options_are_told_before_the_long_work(
    refusal: Refusal, arguments: list[str], words: str
) -> None:
    assert words in refusal(*arguments)


@pytest.mark.usefixtures("ort_library")
def test_goals_out_of_reach_leave_nothing_but_measurements(
    place: Workplace, refusal: Refusal
) -> None:
    """The folder of measurements stays, so that the next try is quicker."""
    files = ["--calibration", place.text, "--cache", place.cache, "--no-verify"]
    for arguments, words in (
        (["--ratio", 200], "the smallest codes take"),
        (["--ratio", 4, "--max-kl", 1e-9], "more than --max-kl 1e-09"),
    ):
        assert words in refusal(*files, "--window", 16, *arguments, early=False)
        assert {path.suffix for path in place.cache.iterdir()} == {".npz", ".json"}


@pytest.mark.slow
@pytest.mark.usefixtures("ort_library")
def test_an_interrupted_search_leaves_no_folder(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And goes on where it was."""
    original, calls = LossMeter.measure, []

    def measure(self: LossMeter, *arguments: object) -> object:
        calls.append(len(arguments[0]))  # type: ignore[arg-type]
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(LossMeter, "measure", measure)
    before = {path.name for path in place.root.iterdir()}
    with pytest.raises(KeyboardInterrupt):
        place.export("out", ratio=4.0)
    assert {path.name for path in place.root.iterdir()} == before | {"cache"}
    calls[:] = [0, 0]
    place.export("out", ratio=4.0)
    assert max(calls) == 1  # plans alone: the layers were measured before


def test_the_text_that_ships_is_long_enough(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any capacity: the export comes as far as the graph."""
    monkeypatch.setattr(pipeline, "check_parity", lambda *_: 1 / 0)
    for capacity in (64, 512):
        with pytest.raises(ZeroDivisionError):
            place.export("out", calibration=None, max_sequence_length=capacity, ratio=4.0)
