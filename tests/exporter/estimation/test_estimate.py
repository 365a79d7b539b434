"""``minicache estimate``: what it says of an export is what the export allocates."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicache.exporter import ExportOptions
from minicache.exporter.cli import main
from minicache.exporter.estimation.compare import Question, compare
from minicache.exporter.estimation.estimate import estimate, step_bytes
from minicache.exporter.estimation.find_geometry import find_geometry
from minicache.exporter.estimation.geometry import Geometry, LayerGeometry
from minicache.exporter.estimation.hypothetical import hypothetical_manifest
from minicache.exporter.estimation.known_models import KNOWN_MODELS
from minicache.exporter.reporting.estimate_text import estimate_lines
from minicache.runtime.cache import Cache
from minicache.runtime.errors import ModelFileError, PlanError
from minicache.runtime.manifest import Manifest
from tests.exporter.subspace_workplace import CAPACITY, FIXTURES, Workplace

GEMMA2, LLAMA, HALF = (
    "onnx-gemma2-optimum-fp32",
    "onnx-llama3-gqa-optimum-fp32",
    "onnx-llama3-gqa-optimum-fp16",
)
RINGS = {"window": 8, "sinks": 2, "rewind_slack": 12}
DOCUMENT = Path(__file__).parents[3] / "docs" / "sizes.md"


def geometry_of(folder: Path) -> Geometry:
    found = find_geometry(str(folder))
    assert isinstance(found, Geometry)
    return found


@pytest.mark.parametrize("fixture", [GEMMA2, HALF])
@pytest.mark.parametrize(
    "options",
    [
        {"mode": "exact"},
        {"mode": "paper", "code_bits": 4, "start_layer": 0, **RINGS},
        {"mode": "paper", "retention": "budget:0.1", "magnitude": "upper", **RINGS},
    ],
)
def test_the_state_is_the_exports_own(
    fixture: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """Names, types, shapes and order of every buffer, without an export."""
    place = Workplace.make(tmp_path, fixture)
    exported = Manifest.load(place.export("out", **options).folder)
    expected = hypothetical_manifest(geometry_of(place.model), ExportOptions(**options), CAPACITY)
    assert expected.state == exported.state
    assert expected.retained_fractions == exported.retained_fractions
    assert expected.retained_extra == exported.retained_extra


def test_the_bytes_of_a_searched_plan_are_met_but_for_padding(tmp_path: Path) -> None:
    place = Workplace.make(tmp_path, LLAMA)
    searched = place.export("out", mode="subspace", ratio=4.0, max_group_size=2)
    exported = Manifest.load(searched.folder)
    options = ExportOptions(ratio=4.0, max_group_size=2, window=exported.window, rewind_slack=16)
    expected = hypothetical_manifest(geometry_of(place.model), options, CAPACITY)
    found, real = (estimate("", one, CAPACITY).resident for one in (expected, exported))
    assert 0.9 * real <= found <= 1.1 * real


@given(
    windows=st.lists(st.sampled_from([0, 0, 24]), min_size=2, max_size=8),
    context=st.integers(16, 900),
    batch=st.integers(1, 3),
    ratio=st.floats(1.5, 40),
)
def test_a_cache_takes_the_bytes_that_were_told(
    windows: list[int], context: int, batch: int, ratio: float
) -> None:
    layers = tuple(LayerGeometry(2, 32, window) for window in windows)
    geometry = Geometry("any", layers, 4, "fp16", 0)
    options = ExportOptions(ratio=ratio) if 0 in windows else ExportOptions(mode="exact")
    manifest = hypothetical_manifest(geometry, options, 1024)
    capacity = -(-context // 16) * 16
    told = estimate("", manifest, context, batch, memory=10**9)
    assert told.resident == Cache(manifest, batch, capacity).nbytes
    alone = Cache(manifest, 1, capacity).nbytes
    assert told.streams is not None
    assert told.streams * alone <= 10**9 < (told.streams + 1) * alone


def test_a_step_reads_every_layers_share() -> None:
    """Exact layers read what is visible; each of a group's layers reads the whole code."""
    layers = (LayerGeometry(2, 64), LayerGeometry(2, 64), LayerGeometry(2, 64, 24))
    geometry = Geometry("any", layers, 4, "fp32", 0)
    exact = hypothetical_manifest(geometry, ExportOptions(mode="exact"), 1024)
    per_token = 2 * 2 * 64 * 4
    assert step_bytes(exact, 512) == (512 + 512 + 24) * per_token
    coded = hypothetical_manifest(geometry, ExportOptions(ratio=8.0), 1024)
    code = (2 * 2 * 64 * 2) // 8  # both heads' keys of two layers, 2 bits each, magnitude included
    exact_part = 2 * (4 + 64) * 2 * 2 * 64 * 2  # two layers, sinks and window, in fp16
    assert step_bytes(coded, 512) == 2 * 512 * 2 * code + exact_part + 24 * per_token


def test_known_models_have_the_sizes_that_are_known() -> None:
    """128 KiB per token for Llama 3 8B, 512 KiB for Llama 2 7B, 320 KiB for 70B, all in fp16."""
    kib = {"llama-3.1-8b": 128, "llama-2-7b": 512, "llama-3.1-70b": 320, "mixtral-8x7b": 128}
    for name, expected in kib.items():
        found = compare(KNOWN_MODELS[name], Question(context=1024))
        assert found.estimates[0].resident == 1024 * expected * 1024


def test_a_configuration_says_as_much_as_the_graph(tmp_path: Path) -> None:
    for fixture in (GEMMA2, LLAMA):
        config = tmp_path / fixture / "config.json"
        config.parent.mkdir()
        config.write_bytes((FIXTURES / fixture / "config.json").read_bytes())
        told, graph = geometry_of(config), geometry_of(FIXTURES / fixture)
        assert (told.layers, told.num_heads) == (graph.layers, graph.num_heads)
        assert told.max_positions == graph.max_positions
        assert told.name == fixture


def test_an_export_tells_its_own_size(tmp_path: Path) -> None:
    folder = Workplace.make(tmp_path, LLAMA).export("out", mode="exact").folder
    source = find_geometry(str(folder))
    assert isinstance(source, Manifest)
    found = compare(source, Question(), "out")
    assert found.estimates[-1].resident == Cache(source, 1, CAPACITY).nbytes
    with pytest.raises(
        PlanError, match=f"the context is 999; 'out' was exported for .* {CAPACITY}"
    ):
        compare(source, Question(context=999), "out")


def test_modes_that_a_model_has_nothing_for_are_left_out_with_a_reason() -> None:
    geometry = Geometry("sliding", (LayerGeometry(2, 32, 24),) * 4, 4)
    found = compare(geometry, Question())
    assert [one.cache for one in found.estimates][-1] == "exact"
    assert Counter(note.split(":")[0] for note in found.notes) == {
        "no paper mode": 1,
        "no subspace mode": 1,
    }


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{}", "num_hidden_layers"),
        ('{"num_hidden_layers": 4}', "num_attention_heads"),
        ('{"num_hidden_layers": 4, "num_attention_heads": 2}', "head_dim"),
        ('{"num_hidden_layers": 1e300, "num_attention_heads": 2}', "num_hidden_layers"),
        ("[1, 2", "num_hidden_layers"),
    ],
)
def test_what_a_configuration_lacks_is_named(content: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ModelFileError, match="does not say") as error:
        find_geometry(str(path))
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing"], "is no file or folder, and none of the known models"),
        (["llama-2-7b", "--ratio", "0.5"], "--ratio is 0.5"),
        (["llama-2-7b", "--ratio", "nan"], "--ratio is nan"),
        (["llama-2-7b", "--context", "3"], "give at least 16"),
        (["llama-2-7b", "--max-group-size", "0"], "0 is not a positive number"),
        (["llama-2-7b", "--memory", "3XB"], "'3XB' is no number of bytes"),
        (["llama-2-7b", "--batch", "x"], "'x'"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["estimate", *arguments])
    except SystemExit as stop:  # argparse's
        code = int(stop.code or 0)
    assert code == 2
    assert words in capsys.readouterr().err


def test_json_is_what_the_table_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "Llama-3.1-8B", "--memory", "16GiB", "--json"]) == 0
    (data,) = json.loads(capsys.readouterr().out)
    found = compare(KNOWN_MODELS["llama-3.1-8b"], Question(memory=2**34))
    assert data == found.to_dict()
    first = data["estimates"][0]
    assert first["streams"] == math.floor(2**34 / first["resident"])
    text = "\n".join(estimate_lines(found, 1, 2**34))
    assert text.count("\n") == 3 + len(data["estimates"])


def test_the_documented_output_is_this_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Every command of the page, and what follows it."""
    blocks = DOCUMENT.read_text(encoding="utf-8").split("```text\n$ minicache ")[1:]
    assert len(blocks) >= 2
    for block in blocks:
        command, output = block.split("```")[0].split("\n", 1)
        assert main(command.split()) == 0
        assert capsys.readouterr().out.replace("\N{NO-BREAK SPACE}", " ") == output
