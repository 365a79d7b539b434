"""Graphs that disagree with the configuration beside them are exported as they are, and say so."""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from minicache.exporter.deviations import deviations
from minicache.exporter.find_attention import find_attention
from minicache.exporter.io import load_model, read_facts
from minicache.exporter.normalise import normalise
from minicache.exporter.options import ExportOptions
from minicache.exporter.pipeline import export_model
from minicache.exporter.sites import ModelDescription
from tests.exporter.graphs import FIXTURES

GEMMA2 = "onnx-gemma2-optimum-fp32"
GEMMA2_NOTE = (
    "config.json says attn_logit_softcapping 50 for layers 0-3, the graph has no softcap there: "
    "the export follows the graph; outputs differ from the original model's"
)
FAITHFUL = sorted({path.parent.name for path in FIXTURES.glob("*/*config.json")} - {GEMMA2})
LLAMA2, QWEN3 = "onnx-llama2-mha-optimum-fp32", "onnx-qwen3-optimum-fp32"
GEMMA3, GENAI = "onnx-gemma3-optimum-fp32", "genai-llama2-mha-cpu-fp32"


@functools.cache
def described(name: str) -> ModelDescription:
    """The model of a fixture, with its own configuration."""
    return find_attention(load_model(FIXTURES / name), read_facts(FIXTURES / name))


def notes(folder: Path) -> list[str]:
    """What another configuration of the same model (the folder's name) gives."""
    return deviations(described(folder.name), read_facts(folder))


def edited(tmp_path: Path, name: str, changes: dict[str, Any], file: str = "config.json") -> Path:
    """A copy of a fixture whose configuration has other keys; a file that it lacks is made."""
    folder = tmp_path / name
    shutil.copytree(FIXTURES / name, folder)
    path = folder / file
    config = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(config | changes))
    return folder


@pytest.mark.parametrize("name", FAITHFUL)
def test_a_faithful_export_has_no_deviations(name: str) -> None:
    # That a graph takes a prompt or one token is a fact of the graph, not of its configuration.
    found = [note for note in described(name).notes if "while its cache is empty" not in note]
    assert found == []


def test_the_configurations_of_the_fixtures_do_speak() -> None:
    """Else the test above would pass on files that nobody understood."""
    assert len(FAITHFUL) > 10
    facts = read_facts(FIXTURES / GEMMA3).attention
    assert [facts.window(layer).value for layer in (0, 4, 5)] == [32, 32, 0]  # type: ignore[union-attr]
    assert [facts.theta(layer).value for layer in (0, 5)] == [1e4, 1e6]  # type: ignore[union-attr]
    for name in FAITHFUL:
        stated = read_facts(FIXTURES / name).attention
        assert stated.num_layers and stated.num_heads and stated.num_kv_heads and stated.vocab_size


def test_optimum_drops_the_softcap_of_gemma_2() -> None:
    assert described(GEMMA2).notes == [GEMMA2_NOTE]


@pytest.mark.parametrize(
    "name", [GENAI, LLAMA2, "mob-llama3-gqa-default", "onnx-llama3-gqa-dynamo-opset23"]
)
def test_a_dropped_window_is_told_of_every_form(tmp_path: Path, name: str) -> None:
    """As GenAI's builder drops that of Mistral."""
    config = {"model_type": "mistral", "sliding_window": 32}
    assert notes(edited(tmp_path, name, config)) == [
        "config.json says sliding_window 32 for layers 0-3, the graph attends to everything there: "
        "the export follows the graph; outputs beyond 32 tokens differ from the original model's"
    ]


def test_layers_of_another_type_are_named(tmp_path: Path) -> None:
    types = ["full_attention", *["sliding_attention"] * 4, "full_attention"]
    assert notes(edited(tmp_path, GEMMA3, {"layer_types": types, "sliding_window": 16})) == [
        "config.json says full attention for layer 0, the graph attends to the last 32 tokens "
        "there: the export follows the graph; outputs beyond 32 tokens differ from the original "
        "model's",
        "config.json says sliding_window 16 for layers 1-4, the graph attends to the last 32 "
        "tokens there: the export follows the graph; outputs beyond 16 tokens differ from the "
        "original model's",
        # A layer's type decides over its RoPE as well.
        "config.json says rope_theta 1000000 for layer 0, the graph's RoPE has a base of 10000 "
        "there: the export follows the graph; outputs differ from the original model's",
    ]


def test_a_window_beyond_the_longest_context_hides_nothing(tmp_path: Path) -> None:
    assert notes(edited(tmp_path, GENAI, {"model_type": "mistral", "sliding_window": 512})) == []


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        (LLAMA2, {"num_hidden_layers": 6}, "num_hidden_layers 6, the graph has 4 attention layers"),
        (LLAMA2, {"vocab_size": 500}, "vocab_size 500, the graph returns 512 logits per token"),
        (LLAMA2, {"num_attention_heads": 8}, "num_attention_heads 8 for layers 0-3, the graph has"),
        (LLAMA2, {"num_key_value_heads": 2}, "caches 4 kv heads there: the export follows the grap"
         "h; its cache is 2 times as large as needed"),
        (QWEN3, {"num_key_value_heads": 1}, "caches 2 kv heads there: the export follows the graph"
         "; the configuration may be another model's"),
        (QWEN3, {"head_dim": 16}, "head_dim 16 for layers 0-3, the graph's heads have 32 comp"),
        (GEMMA3, {"query_pre_attn_scalar": 16}, "query_pre_attn_scalar 16 for layers 0-5, which is "
         "a scale of 0.25, the graph has 0.176777 there"),
        (LLAMA2, {"partial_rotary_factor": 0.5}, "the graph rotates 16 of 16 components there"),
        (LLAMA2, {"rope_theta": 500000.0}, "rope_theta 500000 for layers 0-3, the graph's RoPE has "
         "a base of 10000 there"),
        (LLAMA2, {"rope_theta": None, "rope_parameters": {"rope_theta": 5e5}}, "rope_theta 500000"),
        (LLAMA2, {"text_config": {"vocab_size": 500}}, "vocab_size 500"),
        (LLAMA2, {"final_logit_softcapping": 30.0}, "the graph does not cap its logits"),
        (LLAMA2, {"attn_logit_softcapping": 20}, "attn_logit_softcapping 20 for"),
    ],
)  # fmt: skip
def test_each_disagreement_is_told(
    tmp_path: Path, name: str, changes: dict[str, Any], sentence: str
) -> None:
    (note,) = notes(edited(tmp_path, name, changes))
    assert sentence in note
    assert note.startswith("config.json says ")


def test_scaled_frequencies_are_not_compared_with_a_base(tmp_path: Path) -> None:
    scaled = {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}}
    assert notes(edited(tmp_path, LLAMA2, scaled)) == []


def test_the_base_of_tables_inside_the_operator_is_compared(tmp_path: Path) -> None:
    folder = edited(tmp_path, GENAI, {"rope_theta": 1e6})
    (note,) = notes(folder)
    assert "rope_theta 1000000 for layers 0-3, the graph's RoPE has a base of 10000 there" in note


def test_the_builders_own_file_is_compared(tmp_path: Path) -> None:
    model = json.loads((FIXTURES / GENAI / "genai_config.json").read_text())["model"]
    model["decoder"] |= {
        "num_key_value_heads": 2,
        "sliding_window": {"window_size": 64, "layers": [1, 3]},
    }
    first, second = notes(edited(tmp_path, GENAI, {"model": model}, "genai_config.json"))
    assert first.startswith("genai_config.json says num_key_value_heads 2 for layers 0-3")
    assert second == (
        "genai_config.json says a sliding window of 64 for layers 1 and 3, the graph attends to "
        "everything there: the export follows the graph; outputs beyond 64 tokens differ from the "
        "original model's"
    )


def test_a_softcap_or_window_that_only_the_graph_has_is_told(tmp_path: Path) -> None:
    config = {"attn_logit_softcapping": None, "sliding_window": None, "model_type": "mistral"}
    folder = edited(tmp_path, GENAI, config)
    model = load_model(folder)
    for node in model.graph:
        if node.op_type == "GroupQueryAttention":
            node.attributes["softcap"] = ir.AttrFloat32("softcap", 30.0)
            node.attributes["local_window_size"] = ir.AttrInt64("local_window_size", 8)
    window, softcap = find_attention(model, read_facts(folder)).notes
    assert "says sliding_window null for layers 0-3, the graph attends to the last 8 tok" in window
    assert "attn_logit_softcapping null for layers 0-3, the graph has a softcap of 30" in softcap


def test_the_form_plays_no_part() -> None:
    """A disagreement is told of any site that is found, however it was."""
    description = described(GEMMA2)
    sites = [dataclasses.replace(site, form="F?") for site in description.sites]
    other = dataclasses.replace(description, form="F?", sites=sites)
    assert deviations(other, read_facts(FIXTURES / GEMMA2)) == [GEMMA2_NOTE]


def test_the_rewrite_hands_them_on() -> None:
    assert GEMMA2_NOTE in normalise(load_model(FIXTURES / GEMMA2)).notes


def test_the_report_of_an_export_tells_them(ort_library: Path, tmp_path: Path) -> None:
    options = ExportOptions(mode="exact", quiet=True)
    result = export_model(FIXTURES / GEMMA2, tmp_path / "out", options)
    assert GEMMA2_NOTE in result.report["notes"]
    assert GEMMA2_NOTE in json.loads((tmp_path / "out" / "report.json").read_text())["notes"]
    page = (tmp_path / "out" / "report.html").read_text().replace("&#x27;", "'")
    assert GEMMA2_NOTE in page
