"""Evaluation of tiny models, with the exact one as the original."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicache.runtime import evaluate
from minicache.runtime.errors import SessionError, TextError
from minicache.runtime.evaluate import EvaluationResult, evaluate_folder
from minicache.runtime.metrics import log_softmax
from minicache.runtime.session import Session
from tests.runtime.tiny_model import HEAD_DIM, KV_HEADS, LAYERS, WINDOW

TINY = Callable[..., Path]
CONTEXT = 96


class Original:
    """The original model: the exact tiny model, read from another chunk size."""

    def __init__(self, folder: Path) -> None:
        self.session = Session(folder, threads=1)

    def reset(self) -> None:
        self.session.reset()

    def forward(self, input_ids: np.ndarray) -> np.ndarray:
        return self.session.forward(input_ids)


@pytest.fixture
def original(backend: str, tiny_folder: TINY, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(evaluate, "load_original", lambda path, _: path and Original(path))
    return tiny_folder("exact")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    random = np.random.default_rng(3)
    letters = np.array(list("abcdefgh \n"))
    documents = ["".join(letters[random.integers(0, 10, size)]) for size in (150, 96, 40, 130)]
    path = tmp_path / "text.txt"
    path.write_text("\f".join(documents))
    return path


def test_exact_equals_the_original(original: Path, text: Path) -> None:
    result = evaluate_folder(original, original, text, context=CONTEXT, threads=1)
    assert result.perplexity_ratio == pytest.approx(1.0, abs=1e-5)
    assert result.perplexity_ratio_low == pytest.approx(1.0, abs=1e-5)
    assert result.kl_mean == pytest.approx(0.0, abs=1e-9)
    assert result.top1_agreement == 1.0
    # three documents are long enough; half the context is prefill
    assert (result.documents, result.prefill, result.tokens) == (3, 48, 3 * 48)
    assert result.bits_per_element == 32
    assert result.kv_bytes_fp16 == 2 * LAYERS * KV_HEADS * HEAD_DIM * CONTEXT * 2
    assert result.kv_bytes_resident == result.kv_bytes_exact_model == 2 * result.kv_bytes_fp16
    assert result.compression_ratio == 0.5
    assert result.finish == "complete"


def test_perplexity_is_that_of_the_scored_tokens(original: Path, text: Path) -> None:
    result = evaluate_folder(
        original, None, text, context=CONTEXT, prefill=50, chunk=7, max_documents=1, threads=1
    )
    with Session(original, threads=1) as session:
        ids = np.array(session.tokenizer.encode_documents(text.read_text())[0][:CONTEXT])
        logits = session.forward(ids[None])
    losses = -log_softmax(logits[0])[np.arange(49, 95), ids[50:]]
    assert result.tokens == 46
    assert result.perplexity_exported == pytest.approx(np.exp(losses.mean()), rel=1e-5)
    assert result.perplexity_original is result.kl_mean is result.perplexity_ratio is None
    assert result.finish == "max_documents"


def test_slerp_reports_its_loss_and_its_bytes(
    original: Path, tiny_folder: TINY, text: Path
) -> None:
    result = evaluate_folder(tiny_folder("slerp"), original, text, context=CONTEXT, threads=1)
    assert result.kl_mean is not None and result.kl_mean > 1e-4
    assert result.perplexity_ratio is not None and result.perplexity_ratio != 1.0
    assert result.perplexity_ratio_low is not None and result.perplexity_ratio_high is not None
    assert result.perplexity_ratio_low < result.perplexity_ratio < result.perplexity_ratio_high
    # a direction of 16 numbers for two layers, and a magnitude each: (16 * 16 + 2 * 16) / 32
    assert result.bits_per_element == 9
    assert result.chunk == WINDOW
    with Session(tiny_folder("slerp"), max_sequence_length=CONTEXT) as session:
        assert result.kv_bytes_resident == session.cache_bytes


def test_a_text_without_form_feeds_is_cut_into_windows(original: Path, tmp_path: Path) -> None:
    (tmp_path / "plain.txt").write_text("abcdefghij" * 25)
    result = evaluate_folder(original, None, tmp_path / "plain.txt", context=CONTEXT, threads=1)
    assert result.documents == 2  # 250 tokens hold two windows of 96


def test_the_result_is_json_with_the_agreed_keys(original: Path, text: Path) -> None:
    result = evaluate_folder(original, original, text, context=32, max_documents=1, threads=1)
    data = json.loads(json.dumps(result.to_dict()))
    assert data["perplexity_ratio_low"] is None, "one document gives no interval"
    assert EvaluationResult(**data) == result
    assert {
        "perplexity_original", "perplexity_exported", "perplexity_ratio", "kl_mean",
        "top1_agreement", "bits_per_element", "kv_bytes_resident", "kv_bytes_fp16",
        "compression_ratio", "tokens", "context", "chunk", "prefill", "documents",
        "kv_bytes_exact_model", "finish",
    } <= set(data)  # fmt: skip


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("short\fshorter", "longest document has 7 tokens, 96 are needed"),
        ("short", "longest document has 5 tokens, 96 are needed"),
        (" \n", "holds no tokens"),
        (b"\xff\xfe", "not UTF-8"),
        (None, "cannot be read"),
    ],
)
def test_unusable_texts(
    original: Path, tmp_path: Path, content: str | bytes | None, message: str
) -> None:
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TextError, match=message):
        evaluate_folder(original, None, path, context=CONTEXT)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunk": WINDOW + 1}, f"give 1..{WINDOW}"),
        ({"chunk": 0}, "chunk is 0"),
        ({"prefill": CONTEXT}, "prefill is 96"),
        ({"context": 1}, "context is 1"),
        ({"context": 4096}, "exported for up to 160"),
        ({"max_documents": 0}, "max_documents is 0"),
    ],
)
def test_contradicting_sizes(
    backend: str, tiny_folder: TINY, text: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SessionError, match=message):
        evaluate_folder(tiny_folder("slerp"), None, text, **{"context": CONTEXT, **options})
