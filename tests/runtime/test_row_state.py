"""Prefixes: saved, loaded, copied and continued, they are what they were."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from minicache.runtime.batch import Batch
from minicache.runtime.errors import CapacityError, SessionError, StateFileError
from minicache.runtime.session import Session
from tests.runtime.conftest import OpenTiny
from tests.runtime.session_text import text
from tests.runtime.test_batch import drive, ids
from tests.runtime.tiny_model import SLACK, VARIANTS

Folder = Callable[..., Path]


def following(rows: Any, seed: int = 9) -> np.ndarray:
    """Logits of three calls on one row, the last one after going back."""
    found = [rows.forward(text(1, 20, seed)), rows.forward(text(1, 1, seed + 1))]
    rows.rewind(3)
    return np.concatenate([*found, rows.forward(text(1, 5, seed + 2))], axis=1)


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_loaded_row_goes_on_as_the_saved_one_would(
    ort_library: Path,
    tiny_folder: Folder,
    tmp_path_factory: pytest.TempPathFactory,
    variant: str,
    data: st.DataObject,
) -> None:
    """Any length, row, capacity and way back before saving; bit for bit."""
    length = data.draw(st.integers(0, 90), "length")
    back = data.draw(st.integers(0, min(length, SLACK - 3)), "back")
    row, other_row = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 1))
    path = tmp_path_factory.mktemp("state") / "prefix.safetensors"
    with Session(tiny_folder(variant), batch_size=3, threads=1) as session:
        one = session.rows(row)
        for start in range(0, length, 40):
            one.forward(text(1, length)[:, start : start + 40])
        one.rewind(back)
        session.save(path, row)
        expected = following(one)
    capacity = data.draw(st.sampled_from([128, 144, 160]), "capacity")
    with Session(
        tiny_folder(variant), batch_size=2, max_sequence_length=capacity, threads=1
    ) as other:
        other.forward(text(2, 100, seed=5))  # what the row held is gone
        other.load(path, other_row)
        assert other.lengths[other_row] == length - back and other.lengths[1 - other_row] == 100
        held = other.token_ids(other_row)
        assert held is not None and held.tolist() == text(1, length)[0, : length - back].tolist()
        np.testing.assert_array_equal(following(other.rows(other_row)), expected)


def test_going_back_counts_from_the_longest_that_a_row_has_been(open_tiny: OpenTiny) -> None:
    session = open_tiny("slerp")
    session.forward(text(1, 60))
    session.rewind(5)
    state = session.snapshot()
    session.reset()
    session.restore(state)
    with pytest.raises(SessionError, match=f"take back at most {SLACK - 5}"):
        session.rewind(SLACK - 4)
    session.rewind(SLACK - 5)


def test_a_file_is_as_small_as_its_tokens(open_tiny: OpenTiny, tmp_path: Path) -> None:
    for variant in VARIANTS:
        sizes = []
        for capacity in (64, 160):
            session = open_tiny(variant, max_sequence_length=capacity)
            session.forward(text(1, 48))
            session.save(tmp_path / "prefix")
            size = (tmp_path / "prefix").stat().st_size
            state = session.snapshot()
            assert state.nbytes <= session.row_bytes(48)
            assert state.nbytes < size < state.nbytes + 48 * 4 + 4096
            sizes.append(state.nbytes)
        # The side buffer of retained tokens grows with the capacity, by what it holds.
        assert sizes[0] == sizes[1] if variant == "exact" else sizes[0] <= sizes[1]
    assert [path.name for path in tmp_path.iterdir()] == ["prefix"], "nothing else is left"


@pytest.mark.parametrize("variant", VARIANTS)
def test_forks_continue_alike_and_apart(open_tiny: OpenTiny, variant: str) -> None:
    session = open_tiny(variant, batch_size=4)
    session.rows(1).forward(text(1, 60))
    session.rows(3).forward(text(1, 30, seed=4))
    session.fork(1, [0, 1, 2])
    assert session.lengths.tolist() == [60, 60, 60, 30]
    expected = following(session.rows(1))
    np.testing.assert_array_equal(following(session.rows(0)), expected)
    assert np.abs(following(session.rows(2), seed=20) - expected).max() > 0.1
    assert session.lengths.tolist() == [83, 83, 83, 30]
    with pytest.raises(SessionError, match=r"a row of rows is 4; possible here: 0\.\.3"):
        session.fork(1, [0, 4])


def test_what_is_wrong_with_a_file_is_said_and_changes_nothing(
    open_tiny: OpenTiny, tmp_path: Path
) -> None:
    session, path = open_tiny("slerp", batch_size=2), tmp_path / "prefix"
    session.forward(text(2, 50))
    session.save(path, 1)
    good = path.read_bytes()
    before = {name: array.copy() for name, array in session.cache_tensors().items()}

    def refused(content: bytes, message: str) -> None:
        path.write_bytes(content)
        with pytest.raises(StateFileError, match=message):
            session.load(path)

    refused(good[:-1], "not a whole one")
    refused(good[: len(good) // 2], "not a whole one")
    refused(b"", "not a whole one")
    refused(b"\xff" * 100, "not a whole one")
    for place in (len(good) - 1, len(good) // 2):
        refused(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :], "is damaged")
    refused(good.replace(b'"length":"50"', b'"length":"49"'), "is damaged")
    refused(good.replace(b'"format_version":"1"', b'"format_version":"2"'), "reads 1")
    refused(good.replace(b'"layout_version":"1"', b'"layout_version":"7"'), "layout_version '7'")
    refused(good.replace(b"minicache.row_state", b"minicache.raw_state"), "no saved state")
    with pytest.raises(StateFileError, match="no file of a saved state"):
        session.load(tmp_path / "none")
    path.write_bytes(good)
    with pytest.raises(StateFileError, match="another model or plan"):
        open_tiny("exact").load(path)
    with pytest.raises(CapacityError, match="holds 50 tokens, a row of this session 48"):
        open_tiny("slerp", max_sequence_length=48).load(path)
    assert session.lengths.tolist() == [50, 50]
    for name, array in session.cache_tensors().items():
        np.testing.assert_array_equal(array, before[name])
    session.load(path)


def test_other_weights_are_another_model(tiny_folder: Folder, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_folder(), tmp_path / "out"))
    model = onnx.load(folder / "model.onnx")
    head = next(weight for weight in model.graph.initializer if weight.name == "head")
    head.raw_data = bytes([head.raw_data[0] ^ 1]) + head.raw_data[1:]
    onnx.save(model, folder / "model.onnx")
    with Session(tiny_folder(), threads=1) as one, Session(folder, threads=1) as other:
        assert one.model_digest != other.model_digest
        with pytest.raises(StateFileError, match="another model"):
            other.restore(one.snapshot())


def test_an_interrupted_save_leaves_the_old_file(
    open_tiny: OpenTiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, path = open_tiny("exact"), tmp_path / "prefix"
    session.forward(text(1, 10))
    session.save(path)
    old = path.read_bytes()

    def interrupted(tensors: Any, name: Path, metadata: Any) -> None:
        Path(name).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(safetensors.numpy, "save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.save(path)
    assert path.read_bytes() == old and list(tmp_path.iterdir()) == [path]


def test_retained_tokens_move_together_where_there_is_less_room(open_tiny: OpenTiny) -> None:
    model = {"retention_threshold": -0.05}  # fewer than all places are taken
    large = open_tiny("slerp", model=model, max_sequence_length=160)
    large.forward(text(1, 60))
    state = large.snapshot()
    expected = large.retention_stats()[0].n_retained
    assert 0 < expected <= 24
    small = open_tiny("slerp", model=model, max_sequence_length=96)
    small.restore(state)
    assert small.retention_stats()[0].n_retained == expected
    np.testing.assert_allclose(following(small), following(large), atol=1e-3)
    everything = {"retention_threshold": 1.1}
    full = open_tiny("slerp", model=everything, max_sequence_length=160)
    full.forward(text(1, 100))
    with pytest.raises(StateFileError, match=r"keeps 40 tokens in full, a row .* for 28"):
        open_tiny("slerp", model=everything, max_sequence_length=112).restore(full.snapshot())


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_batch_takes_up_a_prefix(open_tiny: OpenTiny, tmp_path: Path, variant: str) -> None:
    session = open_tiny(variant, batch_size=2)
    prompt = text(1, 60)[0]
    session.rows(0).prefill(prompt[:32])
    session.save(tmp_path / "prefix")
    batch = Batch(session, chunk=32)

    def one_left(prefix: Any) -> list[Any]:
        request = batch.add(prompt, 12, prefix=prefix)
        first = batch.step()
        assert len(first) == 1, "one chunk is left to read"
        return [first[0].token, *drive(batch)[request]]

    plain = batch.add(prompt, 12)
    expected = drive(batch)[plain]
    assert one_left(tmp_path / "prefix") == one_left(str(tmp_path / "prefix")) == expected
    # Of a prefix that is the whole prompt the last token is read again, alone.
    almost, whole = session.rows(0), session.rows(1)
    almost.prefill(prompt[:59])
    whole.prefill(prompt)
    states = [session.snapshot(0), session.snapshot(1)]
    session.reset()
    assert ids(one_left(states[1])) == ids(one_left(states[0]))


def test_a_prompt_must_begin_with_its_prefix(open_tiny: OpenTiny) -> None:
    session = open_tiny("exact", batch_size=2)
    session.rows(0).forward([[1, 2, 3]])
    state = session.snapshot()
    batch = Batch(session)
    with pytest.raises(SessionError, match="token 1 is 7, the prefix has 2 there"):
        batch.add([1, 7, 3, 4], 5, prefix=state)
    with pytest.raises(SessionError, match="the prompt has 2 tokens, fewer than the 3"):
        batch.add([1, 2], 5, prefix=state)
    with pytest.raises(StateFileError):
        batch.add([1, 2, 3, 4], 5, prefix="nowhere")
    assert batch.free_rows == 2
    request = batch.add([1, 2, 3], 5, prefix=state)  # the whole prompt: its last token is read
    assert ids(drive(batch)[request]) == ids(list(open_tiny("exact").generate([1, 2, 3], 5)))
