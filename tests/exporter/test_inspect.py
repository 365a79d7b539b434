"""``minicache inspect``: true facts, the exporter's own rules of merging, and text that is read."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from minicache.exporter.cli import export_main, main
from minicache.exporter.facts import ModelFacts
from minicache.exporter.inspect import inspect_model
from minicache.exporter.inspect_merge import merge_kinds, mode_facts
from minicache.exporter.io import load_model
from minicache.exporter.normalise import normalise
from minicache.exporter.preflight import check_target
from minicache.exporter.reporting.inspect_text import inspect_lines
from minicache.exporter.targets import TARGETS
from minicache.runtime.errors import UnsupportedModelError
from tests.byte_tokenizer import byte_tokenizer
from tests.exporter.graphs import FIXTURES

GEMMA2, GEMMA3 = "onnx-gemma2-optimum-fp32", "onnx-gemma3-optimum-fp32"
MISTRAL, INT4 = "onnx-mistral-sw-optimum-fp32", "genai-llama3-gqa-h16-cpu-int4"
HALF = "onnx-llama3-gqa-optimum-fp16"
ALL = (GEMMA2, GEMMA3, MISTRAL, INT4, HALF)
DOCUMENT = Path(__file__).parents[2] / "docs" / "models.md"


@functools.cache
def inspected(name: str) -> dict[str, Any]:
    """The facts of a fixture, as JSON gives them back."""
    facts: dict[str, Any] = json.loads(json.dumps(inspect_model(FIXTURES / name)))
    return facts


def test_facts_of_the_model() -> None:
    facts = inspected(INT4)
    assert (facts["form"], facts["form_text"]) == ("F4", "com.microsoft GroupQueryAttention")
    assert facts["producer"] == {"name": "onnxruntime-genai", "version": "0.18.0+00d66ef"}
    assert (facts["opset"], facts["opsets"]["com.microsoft"]) == (22, 1)
    assert (facts["dtype"], facts["vocab_size"], facts["max_positions"]) == ("fp32", 512, 512)
    assert facts["kv_bytes_per_token"] == 6 * 2 * 2 * 16 * 4
    assert facts["weights_mb"] == pytest.approx(0.7, abs=0.05)
    assert set(facts["weights_mb_by_type"]) == {"fp32", "uint8"}
    assert inspected(HALF)["kv_bytes_per_token"] == 4 * 2 * 2 * 8 * 2


def test_facts_of_the_layers() -> None:
    layers = inspected(GEMMA3)["layers"]
    assert [layer["layer"] for layer in layers] == list(range(6))
    assert [layer["local_window"] for layer in layers] == [32] * 5 + [0]
    assert [layer["kind"] for layer in layers] == [0] * 5 + [1]
    assert [layer["rope"]["base"] for layer in layers] == [1e4] * 5 + [1e6]
    last = layers[-1]
    assert (last["num_heads"], last["num_kv_heads"], last["head_dim"]) == (4, 1, 32)
    assert last["scale"] == pytest.approx(32**-0.5)
    assert (last["causal_operator"], len(last["masks"])) == (False, 1)
    inside = inspected(INT4)["layers"][0]
    assert inside["rope"] == {
        "where": "op", "rotary_dim": 16, "interleaved": False, "base": None
    }  # fmt: skip  # scaled as Llama 3 does
    assert (inside["causal_operator"], inside["masks"]) == (True, [])


@pytest.mark.parametrize("name", ALL)
def test_layers_of_a_kind_are_the_exporters(name: str) -> None:
    kinds: dict[object, list[int]] = {}
    for layer in normalise(load_model(FIXTURES / name)).layers:
        kinds.setdefault(layer.kind, []).append(layer.layer)
    assert [kind["layers"] for kind in inspected(name)["kinds"]] == list(kinds.values())


def test_what_can_be_merged(tmp_path: Path) -> None:
    modes = inspected(INT4)["modes"]
    assert modes["exact"] == {"possible": True, "reason": None, "groups": []}
    assert modes["subspace"]["groups"] == [[0, 1, 2], [3, 4, 5]]  # at most four, cut evenly
    assert modes["paper"]["groups"] == [[2, 3], [4, 5]]  # from half depth, rounded to pairs
    assert "tokenizer.json" in modes["subspace"]["reason"]
    folder = tmp_path / "with-tokenizer"
    shutil.copytree(FIXTURES / INT4, folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    modes = inspect_model(folder)["modes"]
    assert all(mode["possible"] and mode["reason"] is None for mode in modes.values())


def test_sliding_layers_are_kept_and_say_why() -> None:
    facts = inspected(GEMMA2)
    sliding, full = facts["kinds"]
    assert (sliding["layers"], sliding["codable"]) == ([0, 2], False)
    assert (full["layers"], full["codable"], full["reason"]) == ([1, 3], True, None)
    assert sliding["reason"] == "a ring of 32 tokens bounds their cache already"
    assert facts["modes"]["subspace"]["groups"] == [[1, 3]]
    assert facts["modes"]["paper"]["groups"] == [[1, 3]]
    note = "exact in every mode: a ring of 32 tokens bounds its cache already"
    assert [note in layer["notes"] for layer in facts["layers"]] == [True, False, True, False]
    alone = "no other layer is alike: it is coded alone"
    assert [alone in layer["notes"] for layer in inspected(GEMMA3)["layers"]] == [False] * 5 + [
        True
    ]


def test_layers_of_another_rope_or_shape_share_no_code() -> None:
    layers = normalise(load_model(FIXTURES / HALF)).layers
    layers[2] = dataclasses.replace(layers[2], kind=(*layers[2].kind[:-1], "another RoPE"))
    assert [kind["layers"] for kind in merge_kinds(layers)] == [[0, 1, 3], [2]]
    modes = mode_facts(layers, ModelFacts(), FIXTURES / HALF)
    assert modes["subspace"]["groups"] == [[0, 1, 3], [2]]
    assert modes["paper"]["groups"] == []


def test_a_model_of_sliding_layers_only() -> None:
    modes = inspected(MISTRAL)["modes"]
    assert modes["exact"]["possible"]
    assert "all 4 layers attend to a sliding window" in modes["subspace"]["reason"]
    assert "nothing can be merged" in modes["paper"]["reason"]


def test_targets_say_why_not() -> None:
    targets = inspected(GEMMA2)["targets"]
    assert targets["ort-cpu"] == {"possible": True, "reason": None}
    assert targets["ort-cuda"]["reason"].startswith("the model is fp32, ort-cuda runs fp16")
    assert "quantised weights (MatMulNBits" in inspected(INT4)["targets"]["tensorrt"]["reason"]
    assert all(target["possible"] for target in inspected(HALF)["targets"].values())


def test_bf16_is_refused_with_the_reason() -> None:
    model = dataclasses.replace(normalise(load_model(FIXTURES / HALF)), dtype="bf16")
    for target in TARGETS.values():
        with pytest.raises(UnsupportedModelError, match="cannot run bf16 on CPUs, where exports"):
            check_target(model, target)


def test_deviations_stand_at_the_model_and_at_their_layers() -> None:
    facts = inspected(GEMMA2)
    (note,) = facts["notes"]
    assert note.startswith("config.json says attn_logit_softcapping 50 for layers 0-3")
    assert all(note in layer["notes"] for layer in facts["layers"])


def _keys(value: Any) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(_keys, value)) if value else set()
    if not isinstance(value, dict):
        return set()
    return set(value).union(*map(_keys, value.values()))


def test_every_key_is_documented_and_the_same_for_all_models() -> None:
    for name in ALL:
        assert list(inspected(name)) == list(inspected(GEMMA3))
        for layer in inspected(name)["layers"]:
            assert list(layer) == list(inspected(GEMMA3)["layers"][0])
    content = {key: inspected(GEMMA3)[key] for key in inspected(GEMMA3)}
    named = {key for key in content if key not in ("opsets", "weights_mb_by_type")}
    keys = named | _keys([content[key] for key in named])
    documented = set(re.findall(r"`(\w+)`", DOCUMENT.read_text(encoding="utf-8")))
    free = {*TARGETS, "subspace", "exact", "paper"}
    assert keys - free - documented == set()


def test_the_documented_output_is_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DOCUMENT.parents[1])
    facts = inspect_model(Path("tests/fixtures") / GEMMA2)
    assert "\n".join(inspect_lines(facts, 80)) in DOCUMENT.read_text(encoding="utf-8")


@pytest.mark.parametrize("damage", ["text", "truncated", "unknown operator"])
def test_a_refused_model_gets_the_sentence_of_the_export(
    damage: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "model.onnx"
    if damage == "text":
        file.write_text("this is not a protobuf\n" * 20)
    else:
        shutil.copytree(FIXTURES / INT4, tmp_path, dirs_exist_ok=True)
        content = file.read_bytes()
        if damage == "truncated":
            file.write_bytes(content[: len(content) // 2])
        else:
            file.write_bytes(content.replace(b"GroupQueryAttention", b"GroupQueryAttentiom"))
    assert main(["inspect", str(file)]) == 2
    sentence = capsys.readouterr().err.strip()
    assert export_main([str(file), "-o", str(tmp_path / "out"), "--mode", "exact", "--quiet"]) == 2
    assert capsys.readouterr().err.strip() == sentence
    assert sentence.startswith("minicache: ")


@pytest.mark.parametrize("name", ALL)
def test_piped_text_keeps_sentences_on_one_line(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = inspected(name)
    assert main(["inspect", str(FIXTURES / name)]) == 0
    lines = capsys.readouterr().out.splitlines()
    for note in facts["notes"]:
        assert f"  {note}" in lines
    for name, target in facts["targets"].items():
        assert f"  {name:<12}{'yes' if target['possible'] else 'no: ' + target['reason']}" in lines
    long = [line for line in lines[1:] if len(line) > 80]
    assert all(
        "no: " in line or "not yet: " in line or line.startswith("  conf") for line in long[1:]
    )


def test_text_fits_a_terminal() -> None:
    for width in (60, 80):
        lines = inspect_lines(inspected(GEMMA2), width)
        assert max(map(len, lines[1:])) <= max(width, 78)  # the legend needs so many
        note = inspected(GEMMA2)["notes"][0]
        assert note in " ".join(" ".join(lines).split())


def _table(facts: dict[str, Any]) -> list[str]:
    lines = inspect_lines(facts)
    start = next(n for n, line in enumerate(lines) if line.startswith("layers"))
    end = next(n for n, line in enumerate(lines) if line.startswith("(q, kv"))
    return lines[start:end]


def test_the_table_has_one_row_per_kind_of_layer() -> None:
    head, sliding, full = (line.split() for line in _table(inspected(GEMMA2)))
    # fmt: off
    assert head == ["layers", "q", "kv", "size", "scale", "RoPE", "window", "cap", "sinks", "mask"]
    assert sliding == ["0,", "2", "4", "2", "32", "0.1768", "graph", "32", "32", "-", "-", "graph"]
    assert full == ["1,", "3", "4", "2", "32", "0.1768", "graph", "32", "full", "-", "-", "graph"]
    # fmt: on
    _, row = _table(inspected(INT4))
    assert row.split() == ["0-5", "8", "2", "16", "0.25", "op", "16", "full", "-", "-", "op"]


def test_long_patterns_of_layers_stay_short() -> None:
    facts = json.loads(json.dumps(inspected(GEMMA3)))
    one = facts["layers"][0]
    facts["layers"] = [
        one | {"layer": n, "local_window": 0 if n % 6 == 5 else 32} for n in range(62)
    ]
    for layer in facts["layers"]:  # the widest cells of real models
        layer |= {"num_heads": 128, "head_dim": 128, "scale": 128**-0.5, "softcap": 50.0}
        layer["rope"] = layer["rope"] | {"rotary_dim": 64}
    table = _table(facts)
    assert max(map(len, table)) <= 80
    assert table[-1].startswith("5, 11, .., 59 ")
    rows = " ".join(line[:14] for line in table[1:-1])
    assert re.sub(r"\s+", " ", rows).startswith("0-4, 6-10, 12-16, 18-22, ")
