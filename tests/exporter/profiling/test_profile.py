"""Similarity of layers: arrays whose answers are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from rich.console import Console

from minicache.exporter.profiling import similarity
from minicache.exporter.profiling.profile import choose_pieces, profile_arrays, run_profile
from minicache.exporter.profiling.profile_table import conclusion
from minicache.runtime.errors import MiniCacheError, TextError, UnsupportedModelError

TOKENS, HEADS, SIZE = 2048, 3, 16
PERMUTATION = [2, 0, 1]

Array = npt.NDArray[Any]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240523)


def gaussian(rng: np.random.Generator, heads: int = HEADS) -> Array:
    return rng.standard_normal((TOKENS, heads, SIZE)).astype(np.float32)


def rotation(rng: np.random.Generator) -> Array:
    return np.linalg.qr(rng.standard_normal((HEADS, SIZE, SIZE)))[0]


def test_identical_layers_are_alike_and_merge_without_loss(rng: np.random.Generator) -> None:
    x = gaussian(rng)
    profile = profile_arrays([x, x], [x, x])
    assert len(profile.pairs) == 1
    for kind in (profile.pairs[0].key, profile.pairs[0].value):
        np.testing.assert_allclose(kind.cosine, 1.0, atol=1e-6)
        np.testing.assert_allclose(kind.angular_distance, 0.0, atol=1e-3)
        np.testing.assert_allclose(kind.aligned_cosine, 1.0, atol=1e-5)
        np.testing.assert_allclose(kind.cka, 1.0, atol=1e-6)
        assert kind.head_permutation == list(range(HEADS))
        assert max(kind.merge_errors[16]) < 1e-3  # fp16 direction
    assert "not alike" not in conclusion(profile)


def test_magnitudes_do_not_matter(rng: np.random.Generator) -> None:
    x = gaussian(rng)
    kind = profile_arrays([x, 7 * x], [x, x / 3]).pairs[0].key
    np.testing.assert_allclose(kind.cosine, 1.0, atol=1e-6)
    assert max(kind.merge_errors[16]) < 1e-3


def test_rotated_and_permuted_heads_are_found(rng: np.random.Generator) -> None:
    x = gaussian(rng)
    upper = np.einsum("thd,hde->the", x, rotation(rng))[:, PERMUTATION]
    kind = profile_arrays([x, upper], [x, upper]).pairs[0].key
    assert np.abs(kind.cosine).max() < 0.1
    np.testing.assert_allclose(kind.angular_distance, 0.5, atol=0.05)
    assert kind.head_permutation == [PERMUTATION.index(head) for head in range(HEADS)]
    np.testing.assert_allclose(kind.aligned_cosine, 1.0, atol=1e-5)
    np.testing.assert_allclose(kind.cka, 1.0, atol=1e-6)
    assert max(kind.merge_errors[16]) > 0.5
    assert max(kind.aligned_merge_errors[16]) < 1e-3


def test_independent_layers_are_not_alike_even_aligned(rng: np.random.Generator) -> None:
    profile = profile_arrays([gaussian(rng), gaussian(rng)], [gaussian(rng), gaussian(rng)])
    kind = profile.pairs[0].key
    assert np.abs(kind.cosine).max() < 0.05
    # Fitted on the other half of the tokens: the rotation must not seem to help.
    assert np.abs(kind.aligned_cosine).max() < 0.05
    assert max(kind.cka) < 0.1
    assert "not alike" in conclusion(profile)


def test_merge_errors_of_orthogonal_directions() -> None:
    a, b = np.zeros((8, 1, 4)), np.zeros((8, 1, 4))
    a[..., 0], b[..., 1] = 3.0, 5.0
    # SLERP at t turns by t * 90 degrees; a unit vector off by angle w is off by 2 sin(w / 2).
    lower, upper = similarity.merge_errors(a, b, t=0.6)[16]
    assert lower == pytest.approx(2 * np.sin(0.6 * np.pi / 4), abs=1e-3)
    assert upper == pytest.approx(2 * np.sin(0.4 * np.pi / 4), abs=1e-3)


def test_fewer_bits_lose_more(rng: np.random.Generator) -> None:
    x = gaussian(rng)
    errors = similarity.merge_errors(x, x)
    assert errors[16] < errors[8] < errors[4]
    assert errors[4][0] < 0.2


def test_quantisation_error_of_a_uniform_grid(rng: np.random.Generator) -> None:
    x = rng.uniform(-1, 1, (20000, 1, 2))
    # A uniform variable on a grid of step s: error s / sqrt(12), norm sqrt(1 / 3).
    expected = (2 / 15) / np.sqrt(12) / np.sqrt(1 / 3)
    assert similarity.quantisation_error(x, x, 4) == pytest.approx(expected, rel=0.02)
    shifted = x + 100.0
    assert similarity.quantisation_error(shifted, shifted, 4) < 0.01  # zero points take the offset
    constant = np.ones((10, 1, 2))
    assert similarity.quantisation_error(constant, constant, 4) == 0.0


def test_zero_vectors_give_numbers() -> None:
    zeros = np.zeros((256, 2, 4), np.float32)
    text = json.dumps(profile_arrays([zeros, zeros], [zeros, zeros]).to_json())
    assert "NaN" not in text


def test_sinks_of_every_document_are_left_out(rng: np.random.Generator) -> None:
    x = gaussian(rng)
    spoiled = x.copy()
    for start in (0, TOKENS // 2):
        spoiled[start : start + 4] = -1000.0
    lengths = [TOKENS // 2, TOKENS // 2]
    clean = profile_arrays([x, spoiled], [x, x], document_lengths=lengths).pairs[0].key
    np.testing.assert_allclose(clean.cosine, 1.0, atol=1e-6)
    spoilt = profile_arrays([x, spoiled], [x, x], sinks=0, document_lengths=lengths).pairs[0].key
    assert max(spoilt.cosine) < 0.999


def test_layers_of_other_head_shape_are_not_compared(rng: np.random.Generator) -> None:
    x, other = gaussian(rng), gaussian(rng, heads=1)
    profile = profile_arrays([x, x, other], [x, x, other])
    assert [(pair.lower, pair.upper) for pair in profile.pairs] == [(0, 1)]
    assert [layer.layer for layer in profile.layers] == [0, 1, 2]
    with pytest.raises(UnsupportedModelError, match="head shape"):
        profile_arrays([x, other], [x, other])


def test_pieces_take_every_document_in_turn() -> None:
    documents = [list(range(2500)), list(range(1100)), list(range(30))]
    lengths = [len(piece) for piece in choose_pieces(documents, 10_000)]
    assert lengths == [1024, 1024, 1024, 76, 452]
    assert [len(piece) for piece in choose_pieces(documents, 1500)] == [1024, 476]
    assert choose_pieces([], 100) == []
    begun = choose_pieces([[-1, *range(2500)]], 10_000, [-1])
    assert [piece[:2] for piece in begun] == [[-1, 0], [-1, 1023], [-1, 2046]]


def test_saves_tables_and_plots(rng: np.random.Generator, tmp_path: Path) -> None:
    x, y = gaussian(rng), gaussian(rng)
    profile = profile_arrays([x, y, x], [x, x, y])
    profile.save(tmp_path / "new" / "folder")
    files = {file.name for file in (tmp_path / "new" / "folder").iterdir()}
    assert files == {"profile.json", "similarity.png", "similarity.svg"}
    data = json.loads((tmp_path / "new" / "folder" / "profile.json").read_text())
    assert data == profile.to_json()
    assert data["schema_version"] == 1 and len(data["pairs"]) == 2
    console = Console(width=100, record=True)
    profile.print_table(console)
    printed = console.export_text()
    assert "0, 1" in printed and "int4 per channel" in printed


def test_text_too_short_says_how_many_tokens(tiny_model: Path, tmp_path: Path) -> None:
    text = tmp_path / "short.txt"
    text.write_text("word " * 100)
    with pytest.raises(TextError, match=r"Only 100 tokens .* 512 are needed"):
        run_profile(tiny_model, text, quiet=True)


def test_profiles_a_model(tiny_model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\f".join(["a b c d e " * 80] * 2))
    profile = run_profile(tiny_model, text, tmp_path / "out", quiet=True)
    assert profile.model == "model.onnx" and profile.num_tokens == 800
    # The graph's second layer caches twice the first one's keys and other values.
    np.testing.assert_allclose(profile.pairs[0].key.cosine, 1.0, atol=1e-6)
    assert (tmp_path / "out" / "profile.json").is_file()


def test_missing_model_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(MiniCacheError) as error:
        run_profile(tmp_path / "none.onnx", quiet=True)
    assert "\n" not in str(error.value)
