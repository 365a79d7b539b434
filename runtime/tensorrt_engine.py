"""An engine, deserialised by TensorRT or TensorRT-RTX, whichever built it."""

from __future__ import annotations

import functools
import importlib
import mmap
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from minicache.exporter import schemas
from minicache.plugins import library
from minicache.runtime.engine_file import ENGINE_NAME, FLAVOURS
from minicache.runtime.errors import MissingDependencyError, PackageError, SessionError
from minicache.runtime.signature import GraphTensor

# The module's names of element types: ONNX Runtime's, and NumPy's.
_TYPES = {
    "FLOAT": ("float", "float32"),
    "HALF": ("float16", "float16"),
    "BF16": ("bfloat16", "uint16"),
    "INT8": ("int8", "int8"),
    "INT32": ("int32", "int32"),
    "INT64": ("int64", "int64"),
}
_PACKAGES = {
    "tensorrt": 'install "minicache-onnx[tensorrt]"',
    "tensorrt_rtx": 'install "minicache-onnx[tensorrt-rtx]"',
}


class TensorrtEngine:
    """A deserialised engine; contexts are made of it, one for each profile.

    Args:
        folder: holds ``engine.plan``.
        flavour: key of ``engine_file.FLAVOURS``.

    Attributes:
        path: of the engine, for messages.
        name: TensorRT's own name.
        profiles: how many it has.
        activation_bytes: memory that a context works in, whatever its profile.

    Raises:
        MissingDependencyError: this TensorRT is not installed, or the plugin's library is missing.
        PackageError: TensorRT refuses the engine.
    """

    def __init__(self, folder: Path, flavour: str) -> None:
        self._tensorrt = load_tensorrt(flavour)
        self.path, self.name = folder / ENGINE_NAME, FLAVOURS[flavour]
        self._log = _log(flavour)
        load_plugin(flavour)
        self._log.lines.clear()
        self._runtime = self._tensorrt.Runtime(self._log)
        # Mapped: an engine has the size of its weights, and Python needs no copy of them.
        with (
            self.path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as m,
        ):
            self._engine = self._runtime.deserialize_cuda_engine(m)
        if self._engine is None:
            raise PackageError(
                f"{self.name} {self._tensorrt.__version__} cannot load {str(self.path)!r} "
                f"({self.reason()}); free GPU memory, or run: minicache build-engine {folder}"
            )
        self.profiles = int(self._engine.num_optimization_profiles)
        self.activation_bytes = int(self._engine.device_memory_size_v2)

    def get_inputs(self) -> list[GraphTensor]:
        """The inputs, described as ONNX Runtime describes a graph's."""
        return self._tensors(self._tensorrt.TensorIOMode.INPUT)

    def get_outputs(self) -> list[GraphTensor]:
        """The outputs, likewise."""
        return self._tensors(self._tensorrt.TensorIOMode.OUTPUT)

    def _tensors(self, mode: Any) -> list[GraphTensor]:
        found = []
        for index in range(self._engine.num_io_tensors):
            name = self._engine.get_tensor_name(index)
            if self._engine.get_tensor_location(name) != self._tensorrt.TensorLocation.DEVICE:
                raise PackageError(
                    f"{str(self.path)!r} wants {name!r} in the host's memory: it was not built by "
                    f"us; run: minicache build-engine {self.path.parent}"
                )
            if self._engine.get_tensor_mode(name) == mode:
                kind = _TYPES.get(self._engine.get_tensor_dtype(name).name, ("?", ""))[0]
                shape = (int(size) for size in self._engine.get_tensor_shape(name))
                sizes = tuple(size if size >= 0 else None for size in shape)
                found.append(GraphTensor(name, f"tensor({kind})", sizes))
        return found

    def numpy_type(self, name: str) -> np.dtype[Any]:
        """NumPy's type of an input or output that was described."""
        return np.dtype(_TYPES[self._engine.get_tensor_dtype(name).name][1])

    def context(self, profile: int, memory: int, stream: int) -> Any:
        """A new ``IExecutionContext`` of a profile, with its ``activation_bytes`` at ``memory``.

        Contexts may share them as long as their runs follow each other on one stream.

        Raises:
            SessionError: TensorRT makes none.
        """
        self._log.lines.clear()
        strategy = self._tensorrt.ExecutionContextAllocationStrategy.USER_MANAGED
        context = self._engine.create_execution_context(strategy)
        if context is not None:
            context.set_device_memory(memory, self.activation_bytes)
        if context is None or not context.set_optimization_profile_async(profile, stream):
            raise SessionError(
                f"{self.name} makes no execution context of {str(self.path)!r} ({self.reason()}); "
                f"free GPU memory, or run: minicache build-engine {self.path.parent}"
            )
        return context

    def close(self) -> None:
        """Frees the engine; contexts must be gone."""
        self._engine = self._runtime = None

    def reason(self) -> str:
        """The first error that TensorRT logged since the last call; it is the one that matters."""
        lines = list(self._log.lines)
        self._log.lines.clear()
        return lines[0] if lines else f"{self.name} gave no reason"


def load_tensorrt(flavour: str) -> Any:
    """Imports the Python module of a TensorRT.

    Raises:
        MissingDependencyError: it is not installed, or its libraries are not.
    """
    try:
        module = importlib.import_module(flavour)
        _ = module.__version__, module.Runtime
    except (ImportError, OSError, AttributeError) as error:
        raise MissingDependencyError(
            f"{FLAVOURS[flavour]}'s Python module {flavour!r} cannot be imported ({error}); "
            f"{_PACKAGES[flavour]}"
        ) from error
    return module


def load_plugin(flavour: str) -> None:
    """Registers the plugin with TensorRT, unless somebody has: it refuses a second registration.

    Raises:
        MissingDependencyError: the library is not there, or TensorRT does not take it.
    """
    wanted = schemas.OP_TYPE, str(schemas.VERSION), schemas.DOMAIN
    registry, log = load_tensorrt(flavour).get_plugin_registry(), _log(flavour)
    if registry.get_creator(*wanted) is not None:
        return
    path = library.tensorrt_library_path()
    log.lines.clear()
    if registry.load_library(str(path)) is None or registry.get_creator(*wanted) is None:
        plugin, version, namespace = wanted
        raise MissingDependencyError(
            f"{FLAVOURS[flavour]} finds no plugin {plugin}, version {version}, namespace "
            f"{namespace}, in {str(path)!r} ({next(iter(log.lines), 'no reason given')}); "
            "reinstall minicache-onnx"
        )


@functools.cache
def _log(flavour: str) -> Any:
    """What TensorRT's errors go to: it keeps the first logger that it is given."""
    base: Any = load_tensorrt(flavour).ILogger

    class Log(base):  # type: ignore[misc]  # the base is known when it is imported
        def __init__(self) -> None:
            base.__init__(self)
            self.lines: deque[str] = deque(maxlen=20)

        def log(self, severity: Any, message: str) -> None:
            if severity in (base.ERROR, base.INTERNAL_ERROR):
                self.lines.append(" ".join(message.split()))

    return Log()
