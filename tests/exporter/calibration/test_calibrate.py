"""Calibration of small real graphs, from their exact exports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from minicache.exporter import ExportOptions, export_model
from minicache.exporter.calibration.activation_capture import ActivationCapture
from minicache.exporter.calibration.calibrate import calibrate
from minicache.exporter.calibration.calibration import Calibration
from minicache.exporter.calibration.sample import TokenSample, choose_documents
from minicache.runtime.errors import PackageError, TextError, UnsupportedModelError
from minicache.runtime.session import Session

FIXTURES = Path(__file__).parents[2] / "fixtures"
NAMES = ["onnx-llama3-gqa-optimum-fp32", "genai-llama3-gqa-h16-cpu-int4"]
TOKENS = 2560


@pytest.fixture(scope="module", params=NAMES)
def exact(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, ort_library: Path
) -> Path:
    folder = tmp_path_factory.mktemp("exact") / "out"
    options = ExportOptions(mode="exact", quiet=True, max_sequence_length=256)
    export_model(FIXTURES / request.param, folder, options)
    return folder


def documents(seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 32, size).tolist() for size in (900, 40, 1000, 800)]


@pytest.fixture(scope="module")
def calibration(exact: Path) -> Calibration:
    return calibrate(
        exact, documents=documents(), max_tokens=TOKENS, segment_length=128, max_group_size=3
    )


def test_gathers_what_a_codec_needs(calibration: Calibration) -> None:
    layers = calibration.layers
    assert calibration.tokens == TOKENS and calibration.max_group_size == 3
    assert {layer.rope.kind for layer in layers} == {"rotary"}
    assert len({layer.kind for layer in layers}) == 1
    for layer in layers:
        moment = calibration.query_moments[layer.layer]
        assert moment.shape == (layer.num_kv_heads, layer.head_dim, layer.head_dim)
        assert np.linalg.eigvalsh(moment).min() > -1e-5
    assert any("2560 tokens" in note for note in calibration.notes)
    codec = calibration.codec((0, 1, 2), layers[0].num_kv_heads, 8.0, 8.0)
    assert codec.segment_length == 128


def test_restores_what_the_session_caches(exact: Path, calibration: Calibration) -> None:
    heads = calibration.layers[0].num_kv_heads
    codec = calibration.codec((0, 1), heads, 9.0, 9.0)
    ids = np.array(documents(1)[0][:200])
    with Session(exact) as session:
        session.prefill(ids)
        cache = session.cache_tensors()
        for kind in ("key", "value"):
            layers = [cache[f"past_minicache.{layer}.exact_{kind}"][0, 0] for layer in (0, 1)]
            vectors = np.stack(layers)[:, :, 4:200].transpose(2, 0, 1, 3).astype(np.float32)
            if kind == "key":
                restored = codec.restore_keys(vectors, np.arange(4, 200))
            else:
                restored = codec.restore_values(vectors)
            error = np.linalg.norm(restored - vectors) / np.linalg.norm(vectors)
            assert error < 0.1, kind


def test_is_deterministic_and_survives_the_disk(
    exact: Path, calibration: Calibration, tmp_path: Path
) -> None:
    again = calibrate(
        exact, documents=documents(), max_tokens=TOKENS, segment_length=128, max_group_size=3
    )
    again.save(tmp_path / "calibration")
    loaded = Calibration.load(tmp_path / "calibration")
    assert loaded.layers == calibration.layers and loaded.notes == calibration.notes
    one, other = (c.codec((1, 2), 1, 5.0, 6.0) for c in (calibration, loaded))
    assert one.attributes() == other.attributes()
    for name, array in one.arrays(1).items():
        np.testing.assert_array_equal(array, other.arrays(1)[name], err_msg=name)


def test_short_texts_and_wrong_folders_are_refused(exact: Path, tmp_path: Path) -> None:
    with pytest.raises(TextError, match="500 usable tokens, at least 2048"):
        calibrate(exact, documents=[[1] * 500])
    with pytest.raises(PackageError):
        calibrate(tmp_path, documents=documents())
    (tmp_path / "damaged").write_bytes(b"no archive")
    with pytest.raises(PackageError, match="calibrate again"):
        Calibration.load(tmp_path / "damaged")


def test_activations_that_are_not_finite_are_refused(tmp_path: Path, ort_library: Path) -> None:
    folder = tmp_path / "out"
    export_model(
        FIXTURES / NAMES[0],
        folder,
        ExportOptions(mode="exact", quiet=True, max_sequence_length=64),
    )
    model = onnx.load(folder / "model.onnx")
    weight = max(model.graph.initializer, key=lambda tensor: np.prod(tensor.dims))
    array = onnx.numpy_helper.to_array(weight).copy()
    array[...] = np.nan
    weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))
    onnx.save(model, folder / "model.onnx")
    capture = ActivationCapture(folder, 64)
    with pytest.raises(UnsupportedModelError, match=r"layer \d+ computes .* not finite"):
        list(capture.run([[1, 2, 3]]))


def test_chunks_give_the_same_activations(exact: Path) -> None:
    """ONNX Runtime rounds inputs of int4 products to 8 bits: ties fall either way, and grow."""
    capture = ActivationCapture(exact, 96)
    text = [documents()[0][:90]]
    whole = next(iter(capture.run(text, 90)))
    parts = list(capture.run(text, 40))
    assert [(part.start, part.tokens) for part in parts] == [(0, 40), (40, 40), (80, 10)]
    graph = onnx.load(exact / "model.onnx", load_external_data=False).graph
    rounds = any(node.op_type == "MatMulNBits" for node in graph.node)
    for layer in range(len(capture.layers)):
        joined = np.concatenate([part.key[layer] for part in parts])
        error = np.abs(joined - whole.key[layer]) / np.abs(joined).max()
        if layer == 0 or not rounds:
            assert error.max() < 1e-5
        assert np.sqrt((error**2).mean()) < 0.01


def test_documents_are_taken_from_all_over_the_text() -> None:
    texts = [[number] * 300 for number in range(50)] + [[99] * 10]
    chosen = choose_documents(texts, 1050, 100)
    assert [len(piece) for piece in chosen] == [100] * 10 + [50] * 0
    numbers = sorted(piece[0] for piece in chosen)
    assert numbers[0] < 10 and numbers[-1] > 39 and max(np.diff(numbers)) < 12
    everything = choose_documents(texts, 10**6, 100)
    assert sum(map(len, everything)) == 15000
    assert [piece[0] for piece in everything[:50]] != list(range(50))


def test_every_piece_of_a_document_begins_as_a_text_does() -> None:
    texts = [[-1, *([number] * 299)] for number in range(5)]
    chosen = choose_documents(texts, 10**6, 100, [-1])
    # Three times 99 of each, and a rest of 2, which is too short.
    assert [len(piece) for piece in chosen] == [100] * 15
    assert all(piece[0] == -1 and -1 not in piece[1:] for piece in chosen)


def test_samples_are_spread_evenly() -> None:
    sample = TokenSample([(1, 2)], 5000)
    for start in range(0, 5000, 700):
        tokens = np.arange(start, min(start + 700, 5000), dtype=np.float32)
        sample.add([np.repeat(tokens, 2).reshape(-1, 1, 2)])
    kept = sample.arrays[0][:, 0, 0].astype(int)
    assert len(kept) == 1667 and kept[:3].tolist() == [0, 3, 6]
