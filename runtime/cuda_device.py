"""A GPU as TensorRT sessions need it: memory, copies and one stream, through ``cuda-python``.

TensorRT works in the device's primary context; so does this.
"""

from __future__ import annotations

import importlib
import weakref
from typing import Any

import numpy.typing as npt

from minicache.runtime.errors import MissingDependencyError, SessionError
from minicache.runtime.ort import first_line

_INSTALL = 'pip install "cuda-python>=12.8"'
_NAME_BYTES = 256


class CudaDevice:
    """Device 0 with a stream; whatever it still holds is given back with it.

    Copies and runs are queued on the stream: arrays given to ``upload`` and ``download`` stay as
    they are, and alive, until ``synchronise``.

    Attributes:
        name: the GPU's name.
        capability: its compute capability, e.g. ``8.7``.
        stream: handle of the stream, for TensorRT.

    Raises:
        MissingDependencyError: no cuda-python, no driver, or no GPU.
    """

    def __init__(self) -> None:
        self._driver = load_driver()
        self._device = self._start()
        driver, number = self._driver, self._device
        kinds = driver.CUdevice_attribute
        major, minor = (
            self._call("cuDeviceGetAttribute", kind, number)
            for kind in (
                kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        self.capability = f"{major}.{minor}"
        text: bytes = self._call("cuDeviceGetName", _NAME_BYTES, number)
        self.name = text.split(b"\0")[0].decode(errors="replace")
        self._context = self._call("cuDevicePrimaryCtxRetain", number)
        self.enter()
        # 0: it waits for the default stream, where libraries upload their tables.
        self._stream = self._call("cuStreamCreate", 0)
        self.stream = int(self._stream)
        self._held: set[int] = set()
        self._end = weakref.finalize(
            self, _give_back, driver, number, self._context, self._stream, self._held
        )

    def _start(self) -> Any:
        try:
            self._call("cuInit", 0)
            return self._call("cuDeviceGet", 0)
        except Exception as error:  # cuda-python has classes of its own for a missing driver
            raise MissingDependencyError(
                f"no GPU can be used ({first_line(error)}); TensorRT engines run where an NVIDIA "
                "GPU and its driver are"
            ) from error

    def _call(self, name: str, *arguments: Any) -> Any:
        status, *results = getattr(self._driver, name)(*arguments)
        if int(status) != 0:
            raise SessionError(f"{name}: {getattr(status, 'name', status)}")
        return results[0] if results else None

    def enter(self) -> None:
        """Makes the context this thread's; every thread that comes to the device does so first."""
        self._call("cuCtxSetCurrent", self._context)

    def free_bytes(self) -> int:
        """Bytes of the device's memory that nobody has."""
        return int(self._call("cuMemGetInfo"))

    def allocate(self, size: int) -> int:
        """Returns the address of ``size`` bytes, holding anything.

        Raises:
            SessionError: they do not fit.
        """
        address = int(self._call("cuMemAlloc", max(size, 1)))
        self._held.add(address)
        return address

    def free(self, address: int) -> None:
        """Gives memory back, once what is queued has run."""
        self.synchronise()
        self._held.discard(address)
        self._call("cuMemFree", address)

    def upload(self, address: int, array: npt.NDArray[Any]) -> None:
        """Queues a copy of a C-contiguous array to the device."""
        if array.nbytes:
            self._call("cuMemcpyHtoDAsync", address, array.ctypes.data, array.nbytes, self._stream)

    def download(self, array: npt.NDArray[Any], address: int) -> None:
        """Queues a copy from the device into a C-contiguous array."""
        if array.nbytes:
            self._call("cuMemcpyDtoHAsync", array.ctypes.data, address, array.nbytes, self._stream)

    def copy_lines(
        self, target: int, source: int, lines: int, size: int, target_pitch: int, source_pitch: int
    ) -> None:
        """Queues a copy on the device; both sides must not overlap.

        Args:
            target: address of the first line.
            source: likewise, where it comes from.
            lines: how many.
            size: bytes of each.
            target_pitch: bytes from one line's beginning to the next one's.
            source_pitch: likewise.
        """
        kind = self._driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        copy = self._driver.CUDA_MEMCPY2D()
        copy.dstMemoryType = copy.srcMemoryType = kind
        copy.dstDevice, copy.dstPitch = target, target_pitch
        copy.srcDevice, copy.srcPitch = source, source_pitch
        copy.WidthInBytes, copy.Height = size, lines
        self._call("cuMemcpy2DAsync", copy, self._stream)

    def synchronise(self) -> None:
        """Waits for all that is queued.

        Raises:
            SessionError: some of it failed.
        """
        self._call("cuStreamSynchronize", self._stream)

    def close(self) -> None:
        """Gives back memory, stream and context."""
        self._end()


def load_driver() -> Any:
    """Imports ``cuda.bindings.driver``.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        return importlib.import_module("cuda.bindings.driver")
    except (ImportError, OSError) as error:
        raise MissingDependencyError(
            f"cuda-python cannot be imported ({error}); run: {_INSTALL}"
        ) from error


def _give_back(driver: Any, device: Any, context: Any, stream: Any, held: set[int]) -> None:
    # Without a look at the answers: a context that a failed kernel broke refuses all of it.
    driver.cuCtxSetCurrent(context)
    driver.cuStreamSynchronize(stream)
    for address in held:
        driver.cuMemFree(address)
    held.clear()
    driver.cuStreamDestroy(stream)
    driver.cuDevicePrimaryCtxRelease(device)
