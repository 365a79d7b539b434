"""Stands in for TensorRT: an engine is a graph in the exported form, run by the NumPy reference."""

from __future__ import annotations

import enum
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx

from minicache.exporter import schemas
from minicache.runtime.engine_file import ENGINE_NAME, EngineFile, digests
from minicache.runtime.engine_profile import Profile
from minicache.runtime.manifest import Manifest
from tests.runtime.fake_cuda import FakeDriver
from tests.runtime.reference_graph import ReferenceGraph

VERSION = "10.14.1.48"
ACTIVATIONS = 4096  # bytes that a context works in
INPUT, OUTPUT = "TensorIOMode.INPUT", "TensorIOMode.OUTPUT"


class DataType(enum.Enum):
    """Element types, by the names of the real module."""

    FLOAT = np.dtype(np.float32)
    HALF = np.dtype(np.float16)
    BF16 = np.dtype(np.uint16)
    INT8 = np.dtype(np.int8)
    INT32 = np.dtype(np.int32)
    INT64 = np.dtype(np.int64)


_ONNX_TYPES = {
    onnx.TensorProto.FLOAT: DataType.FLOAT,
    onnx.TensorProto.FLOAT16: DataType.HALF,
    onnx.TensorProto.BFLOAT16: DataType.BF16,
    onnx.TensorProto.INT8: DataType.INT8,
    onnx.TensorProto.INT32: DataType.INT32,
    onnx.TensorProto.INT64: DataType.INT64,
}


class ILogger:
    """The base of loggers."""

    INTERNAL_ERROR, ERROR, WARNING = 0, 1, 2


def write_engine(folder: Path, built: Sequence[Profile], **fields: Any) -> EngineFile:
    """Writes ``engine.plan`` for profiles, and ``engine.json`` with ``fields`` changed."""
    manifest = Manifest.load(folder)
    bounds = [profile.shapes(manifest) for profile in built]
    header = json.dumps(bounds).encode() + b"\n"
    (folder / ENGINE_NAME).write_bytes(header + (folder / manifest.model).read_bytes())
    known: dict[str, Any] = {
        "flavour": "tensorrt",
        "version": VERSION,
        "capabilities": ("8.7",),
        "profiles": tuple(built),
        "engine_bytes": (folder / ENGINE_NAME).stat().st_size,
        "files": digests(folder, manifest.model),
        "plugin_library": "libminicache_trt.so",
    }
    file = EngineFile(**{**known, **fields})
    file.save(folder)
    return file


class FakeTensorrt(SimpleNamespace):
    """The module.

    Attributes:
        driver: whose memory it runs on.
        libraries: plugin libraries that were loaded.
        refusing: by function, the message that it logs before it refuses.
        contexts: execution contexts in the order in which they were made.
        hosted: inputs that engines want in the host's memory.
    """

    def __init__(self, driver: FakeDriver) -> None:
        super().__init__(__version__=VERSION, ILogger=ILogger, driver=driver)
        self.libraries: list[str] = []
        self.refusing: dict[str, str] = {}
        self.contexts: list[FakeContext] = []
        self.logger: Any = None
        self.TensorIOMode = SimpleNamespace(INPUT=INPUT, OUTPUT=OUTPUT)
        self.TensorLocation = SimpleNamespace(DEVICE="device", HOST="host")
        self.hosted: set[str] = set()
        self.ExecutionContextAllocationStrategy = SimpleNamespace(USER_MANAGED="user")

    def Runtime(self, logger: Any) -> SimpleNamespace:
        self.logger = logger
        return SimpleNamespace(deserialize_cuda_engine=self._deserialize)

    def get_plugin_registry(self) -> SimpleNamespace:
        return SimpleNamespace(get_creator=self._creator, load_library=self._load_library)

    def _creator(self, *names: str) -> Any:
        known = schemas.OP_TYPE, str(schemas.VERSION), schemas.DOMAIN
        return "creator" if self.libraries and names == known else None

    def _load_library(self, path: str) -> Any:
        if self.refuses("load_library") or self.libraries:
            return None
        self.libraries.append(path)
        return "handle"

    def _deserialize(self, content: Any) -> Any:
        self.logger.log(ILogger.WARNING, "a warning that is nobody's business")
        if not self.libraries:
            self.logger.log(ILogger.ERROR, "Cannot find plugin: MiniCacheAttention")
            return None
        return None if self.refuses("deserialize") else FakeEngine(self, bytes(content))

    def refuses(self, function: str) -> bool:
        """Whether a function is to refuse; logs as TensorRT does."""
        message = self.refusing.get(function)
        if message is not None and self.logger is not None:
            self.logger.log(ILogger.ERROR, message)
            self.logger.log(ILogger.ERROR, "a consequence of it")
        return message is not None


class FakeEngine:
    """What ``runtime.tensorrt_engine`` needs of an ``ICudaEngine``."""

    device_memory_size_v2 = ACTIVATIONS

    def __init__(self, module: FakeTensorrt, content: bytes) -> None:
        header, _, model = content.partition(b"\n")
        self.module, self.bounds = module, json.loads(header)
        graph = onnx.load_from_string(model).graph
        self._values = {value.name: value for value in (*graph.input, *graph.output)}
        self._inputs = [value.name for value in graph.input]
        with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
            file.write(model)
            file.flush()
            self.graph = ReferenceGraph(Path(file.name), None, [])
        self.num_io_tensors = len(self._values)
        self.num_optimization_profiles = len(self.bounds)

    def get_tensor_name(self, index: int) -> str:
        return list(self._values)[index]

    def get_tensor_mode(self, name: str) -> str:
        return INPUT if name in self._inputs else OUTPUT

    def get_tensor_location(self, name: str) -> str:
        return "host" if name in self.module.hosted else "device"

    def get_tensor_dtype(self, name: str) -> DataType:
        return _ONNX_TYPES[self._values[name].type.tensor_type.elem_type]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        sizes = self._values[name].type.tensor_type.shape.dim
        return tuple(-1 if size.dim_param else size.dim_value for size in sizes)

    def create_execution_context(self, strategy: str) -> Any:
        assert strategy == "user"
        if self.module.refuses("create_execution_context"):
            return None
        self.module.contexts.append(FakeContext(self))
        return self.module.contexts[-1]


class FakeContext:
    """What ``runtime.tensorrt_context`` needs of an ``IExecutionContext``.

    Attributes:
        profile: index of its profile.
        told: names of functions that were called, in order.
        memory: address of its activations.
    """

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine
        self._driver = engine.module.driver
        self.profile = 0
        self.told: list[str] = []
        self.memory = 0
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}

    def set_device_memory(self, memory: int, size: int) -> None:
        assert self._driver.memory[memory].nbytes >= size == ACTIVATIONS
        self.memory = memory

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        assert stream in self._driver.streams
        self.profile = profile
        return not self._engine.module.refuses("set_optimization_profile_async")

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.told.append("set_input_shape")
        least, _, most = self._engine.bounds[self.profile][name]
        fits = len(shape) == len(least) and all(
            low <= size <= high for low, size, high in zip(least, shape, most, strict=True)
        )
        if fits:
            self.shapes[name] = shape
        else:
            self._engine.module.logger.log(ILogger.ERROR, f"{name}: {shape} is out of range")
        return fits

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.told.append("set_tensor_address")
        assert address % 256 == 0 and self._engine.get_tensor_mode(name)
        self._addresses[name] = address
        return True

    def get_tensor_address(self, name: str) -> int:
        return self._addresses[name]

    def execute_async_v3(self, stream: int) -> bool:
        self.told.append("execute_async_v3")
        if self._engine.module.refuses("execute_async_v3"):
            return False
        self._driver.queue(stream, self._execute)
        return True

    def _execute(self) -> None:
        engine, driver = self._engine, self._driver
        feeds = {
            name: driver.read(
                self._addresses[name], self.shapes[name], engine.get_tensor_dtype(name).value
            )
            for name in engine._inputs
        }
        driver.memory[self.memory][:] = self.profile  # activations are nobody else's now
        outputs = [name for name in self._addresses if name not in engine._inputs]
        for name, result in zip(outputs, engine.graph._evaluator.run(outputs, feeds), strict=True):
            driver.write(self._addresses[name], result)
