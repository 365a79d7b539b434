"""The ONNX Runtime side: versions, providers, the op library, and state that is bound in place."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.plugins.library import ort_library_path
from minicache.runtime.cache import Cache
from minicache.runtime.errors import MissingDependencyError, PackageError, SessionError

MINIMUM_ORT = (1, 20)  # 1.18 fails the type inference of the op's variadic inputs
PROVIDERS = {
    "ort-cpu": ("CPUExecutionProvider",),
    "ort-cuda": ("CUDAExecutionProvider", "CPUExecutionProvider"),
}
CONTROL_INPUTS = ("input_ids", "past_lengths", "total_lengths", "logit_positions")
_BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16
_LOGITS = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


def load_onnxruntime() -> Any:
    """Imports ONNX Runtime and checks its version.

    Raises:
        MissingDependencyError: not installed, or older than ``MINIMUM_ORT``.
    """
    install = 'install "minicache-onnx[cpu]" or "minicache-onnx[gpu]"'
    try:
        onnxruntime = importlib.import_module("onnxruntime")
        version = onnxruntime.__version__
    except (ImportError, AttributeError) as error:
        raise MissingDependencyError(
            f"onnxruntime cannot be imported ({error}); {install}"
        ) from error
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < MINIMUM_ORT:
        lowest = ".".join(map(str, MINIMUM_ORT))
        raise MissingDependencyError(
            f"onnxruntime {version} is installed, MiniCacheAttention needs {lowest} or later; {install}"
        )
    return onnxruntime


def choose_providers(target: str, providers: Sequence[str] | None) -> list[str]:
    """Returns the execution providers for a target, or the asked ones, checked.

    Raises:
        PackageError: the folder was exported for a runtime other than ONNX Runtime.
        MissingDependencyError: the installed ONNX Runtime lacks a provider.
    """
    if providers is None:
        if target not in PROVIDERS:
            raise PackageError(
                f"the folder was exported for {target!r}, a Session runs {sorted(PROVIDERS)}; "
                "export with --target ort-cpu, or run it with that target's own runtime"
            )
        providers = PROVIDERS[target]
    available = load_onnxruntime().get_available_providers()
    for provider in providers:
        # ONNX Runtime itself would fall back to the CPU with no more than a warning.
        if provider not in available:
            raise MissingDependencyError(
                f"{provider} is asked for, the installed onnxruntime has {available}; "
                'install "minicache-onnx[gpu]" or give providers=["CPUExecutionProvider"]'
            )
    return list(providers)


class BoundModel:
    """An ONNX Runtime session whose state inputs and outputs are the same memory.

    Args:
        path: the exported graph.
        cache: the buffers; ONNX Runtime uses them as they are on CPU, copies once to other devices.
        threads: threads inside one operator; None leaves the choice to ONNX Runtime.
        providers: execution providers in order of preference.

    Raises:
        MissingDependencyError: ONNX Runtime or the op library is missing or unfit.
        PackageError: the graph cannot be loaded or does not fit its manifest.
    """

    def __init__(
        self, path: Path, cache: Cache, threads: int | None, providers: Sequence[str]
    ) -> None:
        self._ort = load_onnxruntime()
        self._cache = cache
        self._session = self._open(path, threads, providers)
        lost = [name for name in providers if name not in self._session.get_providers()]
        if lost:
            raise MissingDependencyError(
                f"{lost[0]} did not start (see ONNX Runtime's message above); "
                'check its libraries or give providers=["CPUExecutionProvider"]'
            )
        self._device = "cuda" if "CUDAExecutionProvider" in providers else "cpu"
        self._check_names(path)
        kind = {output.name: output.type for output in self._session.get_outputs()}["logits"]
        if kind not in _LOGITS:
            raise PackageError(f"the logits of {str(path)!r} are {kind}, not fp32 or fp16; export again")
        self.logits_dtype = np.dtype(_LOGITS[kind])
        self._binding = self._session.io_binding()
        self._values = {past: self._state_value(past) for past in cache.arrays}
        for past, value in self._values.items():
            self._binding.bind_ortvalue_input(past, value)
            self._binding.bind_ortvalue_output(cache.states[past].present, value)
        # Arrays and values of the last call: ONNX Runtime reads them until the next one.
        self._control: dict[str, tuple[npt.NDArray[Any], Any]] = {}
        self._output: tuple[npt.NDArray[Any], Any] | None = None

    def _open(self, path: Path, threads: int | None, providers: Sequence[str]) -> Any:
        library = ort_library_path()
        options = self._ort.SessionOptions()
        options.log_severity_level = 3
        if threads is not None:
            options.intra_op_num_threads = threads
        try:
            options.register_custom_ops_library(str(library))
        except Exception as error:  # ONNX Runtime raises several unrelated classes
            raise MissingDependencyError(
                f"onnxruntime {self._ort.__version__} refuses {str(library)!r} ({_first_line(error)}); "
                "reinstall minicache-onnx"
            ) from error
        try:
            return self._ort.InferenceSession(str(path), options, providers=list(providers))
        except Exception as error:
            raise PackageError(
                f"onnxruntime {self._ort.__version__} cannot load {str(path)!r} ({_first_line(error)}); "
                "check that the folder is complete, or export again"
            ) from error

    def _check_names(self, path: Path) -> None:
        inputs = {item.name for item in self._session.get_inputs()}
        outputs = {item.name for item in self._session.get_outputs()}
        presents = [state.present for state in self._cache.states.values()]
        missing = [name for name in (*CONTROL_INPUTS, *self._cache.states) if name not in inputs]
        missing += [name for name in ("logits", *presents) if name not in outputs]
        unknown = inputs - {*CONTROL_INPUTS, *self._cache.states}
        if missing or unknown:
            verb, name = ("lacks", missing[0]) if missing else ("also wants", sorted(unknown)[0])
            raise PackageError(
                f"{str(path)!r} {verb} {name!r}: it and its manifest do not belong together; export again"
            )

    def _state_value(self, past: str) -> Any:
        array, dtype = self._cache.arrays[past], self._cache.states[past].dtype
        values = self._ort.OrtValue
        if self._device != "cpu":
            return values.ortvalue_from_numpy(array, self._device, 0)
        if dtype == "bfloat16":
            return values.ortvalue_from_numpy_with_onnx_type(array, _BFLOAT16)
        return values.ortvalue_from_numpy(array)

    def run(
        self,
        control: dict[str, npt.NDArray[Any]],
        logits: npt.NDArray[Any],
    ) -> None:
        """Runs the graph once; the state changes in place, ``logits`` is filled.

        Args:
            control: the arrays named in ``CONTROL_INPUTS``.
            logits: [B, K, V] of ``logits_dtype``, contiguous.

        Raises:
            SessionError: ONNX Runtime refused the call.
        """
        for name, array in control.items():
            self._bind_control(name, array)
        if self._output is None or self._output[0] is not logits:
            self._output = (logits, self._ort.OrtValue.ortvalue_from_numpy(logits))
            self._binding.bind_ortvalue_output("logits", self._output[1])
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:
            raise SessionError(
                f"onnxruntime failed in this call ({_first_line(error)}); the cache has not advanced, "
                "reset() before going on"
            ) from error

    def _bind_control(self, name: str, array: npt.NDArray[Any]) -> None:
        known = self._control.get(name)
        if self._device == "cpu" and known is not None and known[0].shape == array.shape:
            known[0][...] = array  # bound already: ONNX Runtime reads this memory
            return
        # Another device gets its copy when the value is bound, so it must be bound anew each time.
        kept = array.copy()
        value = self._ort.OrtValue.ortvalue_from_numpy(kept)
        self._control[name] = (kept, value)
        self._binding.bind_ortvalue_input(name, value)

    def upload(self, names: Sequence[str]) -> None:
        """Brings host changes of state buffers to the device; nothing to do on CPU."""
        if self._device != "cpu":
            for name in names:
                self._values[name].update_inplace(self._cache.arrays[name])

    def download(self) -> None:
        """Brings the device's state to the host buffers, for inspection; nothing to do on CPU."""
        if self._device != "cpu":
            for name, value in self._values.items():
                self._cache.arrays[name][...] = value.numpy()

    def state_pointers(self) -> dict[str, tuple[int, int]]:
        """Addresses of each state's input and output in the last run; equal when it is in place."""
        # IOBinding returns outputs in the order in which they were first bound: states, then logits.
        names = [self._cache.states[past].present for past in self._values] + ["logits"]
        results = dict(zip(names, self._binding.get_outputs(), strict=True))
        return {
            past: (value.data_ptr(), results[self._cache.states[past].present].data_ptr())
            for past, value in self._values.items()
        }


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
