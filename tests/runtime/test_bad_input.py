"""Manifests changed by hand, and arguments of the wrong kind, are refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicache.exporter.cli import main
from minicache.runtime.chat import ChatTemplate
from minicache.runtime.corpus import cut_documents
from minicache.runtime.errors import CapacityError, PackageError, SessionError, TextError
from minicache.runtime.manifest import FILE_NAME
from minicache.runtime.metrics import DocumentScore, perplexity
from minicache.runtime.original import load_original
from minicache.runtime.session import Session
from minicache.runtime.tokenizer import TextTokenizer
from tests.runtime.conftest import OpenTiny
from tests.runtime.tiny_model import VOCABULARY

TINY = Callable[..., Path]
F1 = Path(__file__).parent.parent / "fixtures" / "onnx-llama3-gqa-optimum-fp32"


@pytest.fixture
def folder(tiny_folder: TINY, tmp_path: Path, backend: str) -> Path:
    return Path(shutil.copytree(tiny_folder("slerp"), tmp_path / "out"))


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads((folder / FILE_NAME).read_text())
    change(content)
    (folder / FILE_NAME).write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", None), ("model", "/etc/passwd"), ("model", "../out/model.onnx"), ("model", ""),
        ("target", []), ("dtype", "int7"), ("num_layers", None), ("head_dim", "x"),
        ("vocab_size", 10**20), ("vocab_size", 0), ("max_sequence_length", None),
        ("rewind_slack", -1), ("window", 1.5), ("eos_token_ids", ["a"]), ("bos_token_id", -1),
        ("retained_fractions", None), ("retained_fractions", {"retained_0": float("nan")}),
        ("retained_extra", []), ("retained_extra", {"retained_0": -1}), ("plan", 5),
    ],
)  # fmt: skip
def test_fields_of_wrong_type_or_range(folder: Path, name: str, value: Any) -> None:
    edit(folder, lambda content: content.__setitem__(name, value))
    with pytest.raises(PackageError, match=name):
        Session(folder)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("name", None, "name of a state"),
        ("past", [], "past of a state"),
        ("group", None, "group of"),
        ("shape", ["batch", 2, 2, -5, 8], "shape of"),
        ("shape", ["batch", 1.5], "shape of"),
        ("shape", ["batch", 1], "do not belong together"),
        ("dtype", "float64", "do not belong together"),
    ],
)
def test_states_that_cannot_be(folder: Path, name: str, value: Any, message: str) -> None:
    edit(folder, lambda content: content["state"][0].__setitem__(name, value))
    with pytest.raises(PackageError, match=message):
        Session(folder)


def test_a_state_given_twice(folder: Path) -> None:
    edit(folder, lambda content: content["state"].append(content["state"][0]))
    with pytest.raises(PackageError, match="a state twice"):
        Session(folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 100_000}, "threads is 100000"),
        ({"threads": 1.5}, "threads is 1.5"),
        ({"batch_size": 2**70}, "does not fit into memory"),
        ({"batch_size": True}, "batch_size is True"),
    ],
)
def test_sizes_beyond_reason(open_tiny: OpenTiny, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SessionError, match=message):
        open_tiny("exact", **options)


def test_sizes_may_be_numpy_integers(open_tiny: OpenTiny) -> None:
    session = open_tiny("exact", batch_size=np.int64(2), max_sequence_length=np.int32(32))
    assert session.lengths.tolist() == [0, 0]


def test_arguments_of_the_wrong_kind(open_tiny: OpenTiny) -> None:
    session = open_tiny()
    for out in (5, [0.0], "x"):
        with pytest.raises(SessionError, match="out is"):
            session.forward([[1]], out=out)  # type: ignore[arg-type]
    for chunk in (0, 1.5, None):
        with pytest.raises(SessionError, match="chunk is"):
            session.prefill([[1, 2]], chunk=chunk)  # type: ignore[arg-type]
    assert session.lengths.tolist() == [0]


@pytest.mark.parametrize(
    ("prompt", "count", "options", "message"),
    [
        ([1], 1.5, {}, "max_new_tokens is 1.5"),
        ([1], None, {}, "max_new_tokens is None"),
        ([1.5], 3, {}, "neither a text nor token ids"),
        (["a"], 3, {}, "neither a text nor token ids"),
        (b"abc", 3, {}, "neither a text nor token ids"),
        ([-1], 3, {}, "token -1; the vocabulary ends at"),
        ([2**70], 3, {}, "the vocabulary ends at"),
        ([1], 3, {"stop": 5}, "stop is 5"),
        ([1], 3, {"stop": [5]}, r"stop is \[5\]"),
        ([1], 3, {"top_k": 1.5}, "top_k is 1.5"),
        ([1], 3, {"seed": "x"}, "unknown or no number"),
    ],
)
def test_prompts_and_options_of_the_wrong_kind(
    open_tiny: OpenTiny, prompt: Any, count: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SessionError, match=message):
        open_tiny().generate(prompt, count, **options)


def test_a_session_used_between_two_tokens(open_tiny: OpenTiny) -> None:
    session = open_tiny()
    tokens = session.generate([1, 2], 5)
    next(tokens)
    session.reset()
    with pytest.raises(SessionError, match="used for something else"):
        next(tokens)


def test_a_full_session_at_the_models_maximum_gives_no_vain_advice(open_tiny: OpenTiny) -> None:
    session = open_tiny()
    with pytest.raises(CapacityError, match="export the model for more"):
        session.prefill(np.ones((1, session.capacity + 1), int))


def test_a_zero_capacity_is_not_the_default(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["generate", str(folder), "--prompt", "x", "--max-sequence-length", "0"]
    assert main(arguments) == 2
    assert "max_sequence_length is 0" in capsys.readouterr().err


def test_a_tokenizer_of_another_model(folder: Path) -> None:
    tokenizer = TextTokenizer(folder)
    largest = max(tokenizer.encode("Once upon a time"))
    with pytest.raises(PackageError, match=f"gives token {largest}, .* another model's"):
        cut_documents("Once upon a time", tokenizer, 4, vocab_size=largest)
    cut_documents("Once upon a time", tokenizer, 4, vocab_size=VOCABULARY)


def test_half_characters_are_no_text(folder: Path) -> None:
    with pytest.raises(TextError, match="not UTF-8"):
        TextTokenizer(folder).encode("a \udcff b")


@pytest.mark.parametrize(
    "template",
    [b"{{ 1/0 }}", b"\xff", b"{% for i in range(9**9) %}{% endfor %}", b"{{ " + b"(" * 5000],
)
def test_chat_templates_fail_in_a_sentence(tmp_path: Path, template: bytes) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(template)
    with pytest.raises(PackageError, match="chat_template"):
        ChatTemplate.load(tmp_path).render([{"role": "user", "content": "x"}])


@pytest.mark.parametrize(
    "content", ["[]", "[" * 100_000, '{"chat_template": [1, {"name": "default"}]}']
)
def test_odd_tokenizer_configurations(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(PackageError, match="tokenizer_config"):
        ChatTemplate.load(tmp_path)


def test_an_original_of_another_vocabulary() -> None:
    with pytest.raises(SessionError, match="has 512 tokens, the export has 256"):
        load_original(F1, 256)


def test_not_a_number_is_no_score() -> None:
    good = np.zeros((1, 4), np.float32)
    with pytest.raises(SessionError, match="exported model gives logits that are NaN"):
        DocumentScore().add(np.array([1]), good * np.nan, None)
    with pytest.raises(SessionError, match="original model gives logits that are NaN"):
        DocumentScore().add(np.array([1]), good, good * np.nan)
    assert perplexity(0.0) == 1.0
    assert perplexity(1e4) == float("inf")
