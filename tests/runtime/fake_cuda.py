"""Stands in for ``cuda.bindings.driver``: own memory, and copies that run when waited for."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

NAME = b"Fake GPU"
GRANULE = 512  # what addresses of the real allocator are multiples of, at least
POISON = 0x7F  # what an allocator leaves behind; fp16 0x7f7f is NaN


class Status(enum.IntEnum):
    """The driver's answers that are used."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_ILLEGAL_ADDRESS = 700


class FakeDriver:
    """The functions that ``runtime.cuda_device`` calls, with cuda-python's ways of answering.

    Attributes:
        memory: bytes by address.
        failing: by function, the answer it gives instead of working.
        room: bytes that may be allocated.
        copied: bytes copied to the device so far.
        fetched: bytes copied from it.
        moved: of each copy on the device, where it went, and bytes.
        contexts: how often the primary context is held.
        streams: what waits on each open stream, by handle.
    """

    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=75,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=76,
    )
    CUmemorytype = SimpleNamespace(CU_MEMORYTYPE_DEVICE=2)
    CUDA_MEMCPY2D = SimpleNamespace

    def __init__(self, capability: tuple[int, int] = (8, 7)) -> None:
        self.capability = dict(zip((75, 76), capability, strict=True))
        self.memory: dict[int, np.ndarray] = {}
        self.failing: dict[str, Status] = {}
        self.room = 1 << 30
        self.copied = 0
        self.fetched = 0
        self.moved: list[tuple[int, int]] = []
        self.contexts = 0
        self.streams: dict[int, list[Callable[[], Any]]] = {}
        self._next = 0x7F00_0000_0000  # no host memory: who reads it here crashes
        self._current: Any = None
        self._initialised = False

    def __getattribute__(self, name: str) -> Any:
        function = object.__getattribute__(self, name)
        if name.startswith("cu") and callable(function):
            status = self.failing.get(name)
            if status is None:
                return function
            if name == "cuStreamSynchronize":  # a broken context runs nothing more
                self.streams = {stream: [] for stream in self.streams}
            return lambda *_: (status,)
        return function

    def cuInit(self, flags: int) -> tuple[Status]:
        assert flags == 0
        self._initialised = True
        return (Status.CUDA_SUCCESS,)

    def cuDeviceGet(self, ordinal: int) -> tuple[Status, int]:
        assert self._initialised and ordinal == 0
        return Status.CUDA_SUCCESS, 0

    def cuDeviceGetAttribute(self, kind: int, device: int) -> tuple[Status, int]:
        assert device == 0
        return Status.CUDA_SUCCESS, self.capability[kind]

    def cuDeviceGetName(self, length: int, device: int) -> tuple[Status, bytes]:
        assert device == 0
        return Status.CUDA_SUCCESS, NAME.ljust(length, b"\0")

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[Status, str]:
        self.contexts += 1
        return Status.CUDA_SUCCESS, "primary"

    def cuDevicePrimaryCtxRelease(self, device: int) -> tuple[Status]:
        self.contexts -= 1
        return (Status.CUDA_SUCCESS,)

    def cuCtxSetCurrent(self, context: str) -> tuple[Status]:
        assert context == "primary"
        self._current = context
        return (Status.CUDA_SUCCESS,)

    def cuStreamCreate(self, flags: int) -> tuple[Status, int]:
        assert flags == 0
        self._next += GRANULE
        self.streams[self._next] = []
        return Status.CUDA_SUCCESS, self._next

    def cuStreamDestroy(self, stream: int) -> tuple[Status]:
        del self.streams[stream]
        return (Status.CUDA_SUCCESS,)

    def cuMemAlloc(self, size: int) -> tuple[Status, int]:
        assert self._current and size > 0
        if sum(block.nbytes for block in self.memory.values()) + size > self.room:
            return Status.CUDA_ERROR_OUT_OF_MEMORY, 0
        address = self._next
        self._next += -(-size // GRANULE) * GRANULE + GRANULE
        self.memory[address] = np.full(size, POISON, np.uint8)
        return Status.CUDA_SUCCESS, address

    def cuMemGetInfo(self) -> tuple[Status, int, int]:
        used = sum(block.nbytes for block in self.memory.values())
        return Status.CUDA_SUCCESS, self.room - used, self.room

    def cuMemFree(self, address: int) -> tuple[Status]:
        assert not any(self.streams.values()), "memory is freed while copies are under way"
        del self.memory[address]
        return (Status.CUDA_SUCCESS,)

    def cuMemcpyHtoDAsync(self, target: int, source: int, size: int, stream: int) -> tuple[Status]:
        self.copied += size
        self.queue(stream, lambda: self._write(target, ctypes.string_at(source, size)))
        return (Status.CUDA_SUCCESS,)

    def cuMemcpyDtoHAsync(self, target: int, source: int, size: int, stream: int) -> tuple[Status]:
        self.fetched += size
        self.queue(
            stream, lambda: ctypes.memmove(target, self._from(source)[:size].tobytes(), size)
        )
        return (Status.CUDA_SUCCESS,)

    def cuMemcpy2DAsync(self, copy: SimpleNamespace, stream: int) -> tuple[Status]:
        assert copy.srcMemoryType == copy.dstMemoryType == self.CUmemorytype.CU_MEMORYTYPE_DEVICE
        size, lines = copy.WidthInBytes, copy.Height
        assert 0 < size <= min(copy.srcPitch, copy.dstPitch) and lines > 0
        self.moved.append((copy.dstDevice, size * lines))
        source = self._lines(copy.srcDevice, lines, size, copy.srcPitch)
        target = self._lines(copy.dstDevice, lines, size, copy.dstPitch)
        assert not np.shares_memory(source, target)
        self.queue(stream, lambda: np.copyto(target, source))
        return (Status.CUDA_SUCCESS,)

    def _lines(self, address: int, lines: int, size: int, pitch: int) -> np.ndarray:
        block = self._from(address)
        assert (lines - 1) * pitch + size <= block.nbytes
        return np.lib.stride_tricks.as_strided(block, (lines, size), (pitch, 1))

    def cuStreamSynchronize(self, stream: int) -> tuple[Status]:
        waiting, self.streams[stream] = self.streams[stream], []
        for work in waiting:
            work()
        return (Status.CUDA_SUCCESS,)

    def queue(self, stream: int, work: Callable[[], Any]) -> None:
        """Puts work on the stream: nothing has happened when the call returns."""
        assert self._current
        self.streams[stream].append(work)

    def read(self, address: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """A copy of what lies at an address."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return self._from(address)[:size].view(dtype).reshape(shape).copy()

    def write(self, address: int, array: np.ndarray) -> None:
        """Puts an array to an address."""
        self._write(address, np.ascontiguousarray(array).tobytes())

    def _write(self, address: int, content: bytes) -> None:
        target = self._from(address)
        assert len(content) <= target.nbytes
        target[: len(content)] = np.frombuffer(content, np.uint8)

    def _from(self, address: int) -> np.ndarray:
        """What is allocated from an address on, which may lie within a block."""
        base = max(start for start in self.memory if start <= address)
        return self.memory[base][address - base :]
