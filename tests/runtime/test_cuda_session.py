"""Folders for CUDA: refusals on this machine, and the session's part on a device that is faked."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from minicache.runtime import open_model, ort
from minicache.runtime.errors import MissingDependencyError, PackageError
from minicache.runtime.manifest import KERNELS_NAME
from minicache.runtime.session import Session
from tests.runtime.fake_device import state_copies
from tests.runtime.reference_graph import ReferenceGraph
from tests.runtime.session_text import drive_batch

TINY = Callable[..., Path]


@pytest.fixture
def cuda_folder(device_folder: TINY) -> Path:
    return device_folder("slerp")


def test_a_machine_without_cuda_says_so_in_a_sentence(cuda_folder: Path) -> None:
    if ort.CUDA in onnxruntime.get_available_providers():
        pytest.skip("this machine has CUDA")
    with pytest.raises(MissingDependencyError) as failure:
        Session(cuda_folder)
    assert "CUDAExecutionProvider is asked for" in str(failure.value)
    assert "minicache-onnx[gpu]" in str(failure.value)


@pytest.mark.usefixtures("device")
def test_a_folder_without_kernels_names_the_command_that_makes_them(cuda_folder: Path) -> None:
    shutil.rmtree(cuda_folder / KERNELS_NAME)
    with pytest.raises(PackageError, match="run: minicache kernels"):
        Session(cuda_folder)


@pytest.mark.usefixtures("device")
def test_a_folder_for_cpus_does_not_run_on_cuda(tiny_folder: TINY) -> None:
    with pytest.raises(PackageError, match="export with --target ort-cuda"):
        Session(tiny_folder("slerp"), providers=["CUDAExecutionProvider"])


@pytest.mark.usefixtures("ort_library")
def test_a_folder_for_cuda_runs_on_a_cpu_that_is_asked_for(
    cuda_folder: Path, tiny_folder: TINY
) -> None:
    ids = np.arange(40)[None] % 256
    with Session(tiny_folder("slerp")) as one:
        expected = one.forward(ids)
    with Session(cuda_folder, providers=["CPUExecutionProvider"]) as other:
        np.testing.assert_array_equal(other.forward(ids), expected)


def test_nodes_that_end_up_on_the_cpu_are_refused(tiny_folder: TINY, ort_library: Path) -> None:
    """Where the session names CUDA kernels, but CUDA does not take the nodes."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry(ort.PACK_OPTION, "/nowhere")
    options.register_custom_ops_library(str(ort_library))
    path = str(tiny_folder("slerp") / "model.onnx")
    with pytest.raises(Exception, match="ONNX Runtime gave the node to the CPU"):
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    other = onnxruntime.SessionOptions()  # nothing of it is left for other sessions
    other.register_custom_ops_library(str(ort_library))
    onnxruntime.InferenceSession(path, other, providers=["CPUExecutionProvider"])


def test_a_device_session_equals_one_on_the_host(
    cuda_folder: Path, tiny_folder: TINY, device: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ragged prefill, decode steps, going back, a reset: the same logits, and state to look at."""

    def run(session: Session) -> list[np.ndarray]:
        rng = np.random.default_rng(0)
        found = []
        for _ in range(2):
            found.append(session.forward(rng.integers(0, 256, (2, 30)), [30, 17]))
            for _ in range(3):
                found.append(session.forward(rng.integers(0, 256, (2, 1)), logits="last"))
            session.rewind([2, 1])
            found.append(session.forward(rng.integers(0, 256, (2, 1)), [1, 0]))
            found.append(session.forward(rng.integers(0, 256, (2, 4)), logits=None))
            found += [x.copy() for x in session.cache_tensors().values() if x.dtype == np.int32]
            found.append(np.array([stats.n_retained for stats in session.retention_stats()]))
            session.reset()
        return found

    with Session(cuda_folder, batch_size=2) as session:
        graph: Any = session._model._graph  # type: ignore[union-attr]
        actual = run(session)
        assert all(one == other for one, other in session.state_pointers().values())
        uploads = [name for to_device, name, *_ in state_copies(session) if to_device]
    # Decode steps are one recording, whatever lies between them; prefill is none.
    assert graph.recordings == ["-1", "1", "1", "1", "1", "-1"] * 2
    assert graph.bindings == 5 + 1  # one is for copies
    # Only what marks free slots ever comes from the host: at each start.
    assert uploads == ["retained_position"] * 3
    monkeypatch.setattr(open_model, "open_graph", ReferenceGraph)
    monkeypatch.setattr(ort, "load_onnxruntime", lambda: onnxruntime)
    with Session(tiny_folder("slerp"), batch_size=2) as session:
        expected = run(session)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("device")
def test_a_batch_on_a_device_equals_one_on_the_host(
    cuda_folder: Path,
    tiny_folder: TINY,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prompts on their rows alone, decode steps on all rows, as they are recorded; saved rows."""
    with Session(cuda_folder, batch_size=3) as session:
        graph: Any = session._model._graph  # type: ignore[union-attr]
        actual = drive_batch(session, tmp_path, 16, (1, 30, 17))
        assert set(graph.shapes) >= {(1, 16), (1, 14), (3, 1)}
        assert (1, 1) not in graph.shapes and (2, 1) not in graph.shapes
        recorded = {shape for shape, number in zip(graph.shapes, graph.recordings, strict=True)
                    if number == "1"}  # fmt: skip
        assert recorded == {(3, 1)}
    monkeypatch.setattr(open_model, "open_graph", ReferenceGraph)
    monkeypatch.setattr(ort, "load_onnxruntime", lambda: onnxruntime)
    with Session(tiny_folder("slerp"), batch_size=3) as session:
        # The prefix of the other folder would be refused, as it is another model's.
        assert drive_batch(session, tmp_path, 16, (1, 30, 17)) == actual
