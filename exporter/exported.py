"""Runs an exported graph for the parity proof: through the runtime's session, or bare."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from minicache.exporter.io import find_model_file
from minicache.exporter.runnable import runnable_source
from minicache.exporter.schemas import CAPACITY_MULTIPLE
from minicache.plugins.library import ort_library_path
from minicache.runtime import manifest
from minicache.runtime.errors import PackageError
from minicache.runtime.ort import first_line, load_onnxruntime
from minicache.runtime.session import Session

_NUMPY = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


class ExactRunner(Protocol):
    """What the parity proof needs of a rewritten model."""

    def forward(
        self, input_ids: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.float32]:
        """Appends tokens [B, S], right-padded, and returns logits [B, S, V]."""


class BareGraph:
    """An exported graph of exact layers without a manifest, its state bound in place.

    Args:
        file: the graph.
        batch: rows B.
        capacity: tokens C per row.
        unrounded: keep ``MatMulNBits`` from rounding activations (see ``full_precision``).

    Raises:
        MissingDependencyError: the op library is not there.
        PackageError: ONNX Runtime does not load the graph.
    """

    def __init__(self, file: Path, batch: int, capacity: int, *, unrounded: bool = False) -> None:
        ort = load_onnxruntime()
        options = ort.SessionOptions()
        options.log_severity_level = 4  # the exception says it all
        options.register_custom_ops_library(str(ort_library_path()))
        source = runnable_source(file, options, unrounded=unrounded)
        try:
            self._session = ort.InferenceSession(
                source, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # ORT's exceptions have no common public base
            raise PackageError(
                f"onnxruntime {ort.__version__} cannot load {str(file)!r} ({first_line(error)}); "
                "please report this model"
            ) from error
        self._lengths = np.zeros(batch, np.int32)
        sizes = {manifest.BATCH: batch, manifest.CAPACITY: capacity}
        self._state: dict[str, npt.NDArray[Any]] = {
            value.name: np.zeros([sizes.get(d, d) for d in value.shape], _NUMPY[value.type])
            for value in self._session.get_inputs()
            if value.name.startswith("past_minicache.")
        }

    def forward(
        self, input_ids: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.float32]:
        """As ``ExactRunner``."""
        batch, new = input_ids.shape
        total = self._lengths + lengths
        feeds = {"input_ids": input_ids, "past_lengths": self._lengths, "total_lengths": total}
        feeds["logit_positions"] = np.tile(np.arange(new, dtype=np.int64), (batch, 1))
        binding = self._session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        binding.bind_output("logits", "cpu")
        for name, array in self._state.items():
            where = ("cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
            binding.bind_input(name, *where)
            binding.bind_output(name.replace("past_", "present_", 1), *where)
        self._session.run_with_iobinding(binding)
        self._lengths = total
        return np.asarray(binding.get_outputs()[0].numpy(), np.float32)


class _SessionRunner:
    """The runtime's session as an ``ExactRunner``."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def forward(
        self, input_ids: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.float32]:
        """As ``ExactRunner``."""
        logits = self._session.forward(input_ids, lengths)
        assert logits is not None
        return logits


def open_exported(folder: Path, batch: int, tokens: int, *, unrounded: bool = False) -> ExactRunner:
    """Opens an exported folder for ``batch`` rows of up to ``tokens`` tokens.

    The runtime's session drives it where there is a manifest, so that the proof covers what users
    run; it cannot change how activations are rounded, though.

    Raises:
        MissingDependencyError: the op library is not there.
        PackageError: ONNX Runtime does not load the graph.
    """
    capacity = -(-tokens // CAPACITY_MULTIPLE) * CAPACITY_MULTIPLE
    if not unrounded and (Path(folder) / manifest.FILE_NAME).is_file():
        return _SessionRunner(Session(folder, batch_size=batch, max_sequence_length=tokens))
    return BareGraph(find_model_file(folder), batch, capacity, unrounded=unrounded)
