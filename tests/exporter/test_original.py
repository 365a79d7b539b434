"""The driver of the original model: growing cache, batches, errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from minicache.exporter.original import OriginalModel
from minicache.runtime.errors import ModelFileError, SessionError
from tests.exporter.graphs import EXPORTS, FIXTURES, Fixture
from tests.tolerances import LOGITS

NAMES = {"fp32": "float32", "fp16": "float16"}


@pytest.mark.parametrize("fixture", EXPORTS, ids=lambda f: f.name)
def test_decode_equals_prefill(fixture: Fixture) -> None:
    # Without rounded activations: with them the int4 graph does not agree with itself.
    model = OriginalModel(fixture.path, unrounded=True)
    ids = np.random.default_rng(0).integers(0, model.vocab_size, (2, 12))
    whole = model.logits_of(ids)
    parts = [model.forward(ids[:, :7])] + [model.forward(ids[:, i : i + 1]) for i in range(7, 12)]
    assert model.length == 12
    assert whole.dtype == np.float32
    assert whole.shape == (2, 12, 512)
    limit = LOGITS[NAMES[fixture.dtype]] * np.abs(whole).max()
    assert np.abs(np.concatenate(parts, axis=1) - whole).max() < limit


def test_reset_forgets() -> None:
    model = OriginalModel(EXPORTS[0].path)
    ids = np.arange(5)[None]
    first = model.forward(ids)
    model.reset()
    np.testing.assert_array_equal(first, model.forward(ids))


def test_another_batch_needs_a_reset() -> None:
    model = OriginalModel(EXPORTS[0].path)
    model.forward(np.zeros((1, 2), np.int64))
    with pytest.raises(SessionError, match="reset"):
        model.forward(np.zeros((2, 1), np.int64))


def test_token_out_of_range_is_one_sentence() -> None:
    model = OriginalModel(EXPORTS[0].path)
    with pytest.raises(SessionError, match=r"1 tokens after 0: .*out of data bounds"):
        model.forward(np.array([[10**6]]))


def test_a_missing_model(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError):
        OriginalModel(tmp_path / "model.onnx")


def test_external_data_is_found_from_anywhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = (FIXTURES / "genai-llama3-gqa-h16-cpu-int4").resolve()
    monkeypatch.chdir(tmp_path)
    for unrounded in (False, True):
        assert OriginalModel(path, unrounded=unrounded).forward(np.zeros((1, 1), np.int64)).any()


def test_a_graph_that_takes_a_prompt_or_one_token_is_fed_so() -> None:
    """Its masks are square or one row; and it states equal shapes for tensors that are not."""
    model = OriginalModel(FIXTURES / "genai-llama3-gqa-cpu-fp16")
    ids = np.arange(1, 13)[None]
    wanted = model.logits_of(ids)
    parts = [model.forward(ids[:, :5]), model.forward(ids[:, 5:9]), model.forward(ids[:, 9:])]
    found = np.concatenate(parts, axis=1)
    assert np.abs(found - wanted).max() <= 1e-2 * np.abs(wanted).max()
