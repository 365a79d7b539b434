"""From a folder with an engine to a model that runs, comparing everything on the way."""

from __future__ import annotations

from pathlib import Path

from minicache.runtime import checks
from minicache.runtime.cache import Cache
from minicache.runtime.cuda_device import CudaDevice
from minicache.runtime.engine_file import EngineFile, Installation
from minicache.runtime.errors import PackageError
from minicache.runtime.memory_guard import check_room
from minicache.runtime.tensorrt_engine import TensorrtEngine, load_tensorrt
from minicache.runtime.tensorrt_model import TensorrtModel

TARGET = "tensorrt"  # of the export


def open_engine(folder: Path, file: EngineFile, cache: Cache) -> TensorrtModel:
    """Opens ``engine.plan`` on this machine's GPU.

    Args:
        folder: holds the engine.
        file: what is known of it; compared with the folder already.
        cache: shapes and types of the state.

    Raises:
        MissingDependencyError: TensorRT, the plugin's library, cuda-python or a GPU is missing.
        PackageError: the engine was built for another TensorRT or GPU, or TensorRT refuses it.
        SessionError: the engine is too small for the cache, or the GPU for its buffers.
    """
    checks.engine_sizes(file, folder, cache.batch_size, cache.capacity)
    version = load_tensorrt(file.flavour).__version__
    device = CudaDevice()
    try:
        found = Installation(file.flavour, version, device.capability, device.name)
        file.check_installation(found, folder)
        free = device.free_bytes()
        check_room(cache.manifest, cache.batch_size, cache.capacity, free, "GPU memory")
        engine = TensorrtEngine(folder, file.flavour)
        if engine.profiles != len(file.profiles):
            raise PackageError(
                f"{str(engine.path)!r} has {engine.profiles} profiles, the file beside it says "
                f"{len(file.profiles)}; run: minicache build-engine {folder}"
            )
        return TensorrtModel(engine, file.profiles, device, cache)
    except BaseException:
        device.close()
        raise
