"""The ONNX Runtime session of an original model, opened as the graph needs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_ir as ir

from minicache.exporter.io import weight_bytes
from minicache.exporter.runnable import runnable_source
from minicache.exporter.time_limit import limited
from minicache.runtime.errors import ModelFileError
from minicache.runtime.ort import first_line, load_onnxruntime

LARGE_BYTES = 1 << 30  # of weights
# How ONNX Runtime words that a graph states equal sizes for tensors that are not (GenAI's fp16
# graphs for CPUs do, behind repeat_kv): it had planned them into one buffer.
_WRONG_SHAPES = "attempting to re-use buffer"


class OriginalSession:
    """An inference session on the CPU.

    Args:
        file: the model.
        model: the same, loaded.
        threads: threads inside one operator; None leaves the choice to ONNX Runtime.
        unrounded: keep ``MatMulNBits`` from rounding activations (see ``full_precision``).
        lean: keep large weights from being held a second time, packed; slower.

    Raises:
        ModelFileError: ONNX Runtime does not load it.
    """

    def __init__(
        self, file: Path, model: ir.Model, threads: int | None, *, unrounded: bool, lean: bool
    ) -> None:
        self.ort: Any = load_onnxruntime()
        self._file, self._threads, self._unrounded = file, threads, unrounded
        self._lean = lean and _is_large(model)
        self._session = self._open(reuse=True)
        self._reuse = True
        self.types: dict[str, str] = {v.name: v.type for v in self._session.get_inputs()}

    @property
    def bare(self) -> Any:
        """The ``onnxruntime.InferenceSession`` itself."""
        return self._session

    def io_binding(self) -> Any:
        """A new binding of this session."""
        return self._session.io_binding()

    def run(self, binding: Any, seconds: float) -> None:
        """Runs the graph once; a graph that states wrong shapes is opened anew and run again.

        Raises:
            Exception: as ONNX Runtime raises it; its exceptions have no common public base.
        """
        try:
            with limited(seconds) as options:
                self._session.run_with_iobinding(binding, options)
        except Exception as error:
            if not self._reuse or _WRONG_SHAPES not in str(error):
                raise
            self._reuse, self._session = False, self._open(reuse=False)
            raise WrongShapesError from error

    def _open(self, *, reuse: bool) -> Any:
        options = self.ort.SessionOptions()
        options.log_severity_level = 4  # the exception says it all
        options.enable_mem_reuse = reuse
        if self._threads is not None:
            options.intra_op_num_threads = self._threads
        if self._lean:
            options.add_session_config_entry("session.disable_prepacking", "1")
        try:
            source = runnable_source(self._file, options, unrounded=self._unrounded)
            return self.ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ORT's exceptions have no common public base
            raise ModelFileError(
                f"ONNX Runtime {self.ort.__version__} does not load {str(self._file)!r} "
                f"({first_line(error)}); copy or export it again"
            ) from error


class WrongShapesError(Exception):
    """The session was opened anew, not planned by the stated shapes: bind and run again."""


def _is_large(model: ir.Model) -> bool:
    """Whether a second copy of the weights matters; quantised ones are not used unpacked."""
    quantised = any(node.op_type == "MatMulNBits" for node in model.graph)
    return weight_bytes(model) > LARGE_BYTES and not quantised
