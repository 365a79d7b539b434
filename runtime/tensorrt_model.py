"""An engine whose state lies on a GPU, bound once; nothing of it is copied between calls.

Each profile, decode and prefill, has a context of its own; their runs follow each other on one
stream, so that they share activations, state and buffers.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from minicache.runtime.cache import Cache
from minicache.runtime.cuda_device import CudaDevice
from minicache.runtime.engine_profile import Profile
from minicache.runtime.errors import SessionError
from minicache.runtime.eviction.slot_move import SlotMove
from minicache.runtime.model import call_failed, copy_failed, no_room
from minicache.runtime.signature import CONTROL_INPUTS, check_names, logits_type
from minicache.runtime.tensorrt_context import TensorrtContext
from minicache.runtime.tensorrt_engine import TensorrtEngine
from minicache.runtime.used_slots import slots_by_head

_ALIGNMENT = 256  # of every address that TensorRT is given


class TensorrtModel:
    """Runs an engine; the kernels update the state in place, on the device.

    The cache's arrays are what the host saw last: ``pull`` brings them up to date.

    Args:
        engine: deserialised.
        profiles: what it was built for, in its order.
        device: where it runs; closed with the model.
        cache: shapes and types of the state.

    Raises:
        PackageError: engine and manifest do not belong together.
        SessionError: the state, the activations or TensorRT's own needs do not fit onto the device.
    """

    def __init__(
        self, engine: TensorrtEngine, profiles: Sequence[Profile], device: CudaDevice, cache: Cache
    ) -> None:
        self._engine, self._device, self._cache = engine, device, cache
        check_names(engine, cache, engine.path)
        self._logits = np.empty(0, logits_type(engine, engine.path))
        self._types = {name: engine.numpy_type(name) for name in CONTROL_INPUTS}
        self._states = {
            past: self._allocate(array.nbytes, array.shape) for past, array in cache.arrays.items()
        }
        self._memory = self._allocate(engine.activation_bytes, [engine.activation_bytes])
        # What a call takes in and gives back; each grows to the largest call so far.
        self._buffers: dict[str, tuple[int, int]] = {}
        room = cache.batch_size, 1, 1, cache.capacity
        self._contexts = {
            profile: TensorrtContext(engine, index, self._memory, device.stream)
            for index, profile in enumerate(profiles)
            if profile.covers(*room)
        }
        for context in self._contexts.values():
            self._place(context, 0, cache.batch_size)
        self._last: TensorrtContext | None = None
        self.push(slice(0, cache.batch_size), cache.marks)

    def _allocate(self, size: int, shape: Sequence[int]) -> int:
        try:
            return self._device.allocate(size)
        except SessionError as error:
            raise no_room(shape, str(error)) from error

    def _address(self, past: str, first: int) -> int:
        """Where row ``first`` of a state begins."""
        array = self._cache.arrays[past]
        return self._states[past] + first * (array.nbytes // len(array))

    def needs_all_rows(self, tokens: int) -> bool:
        """Whether rows of a state begin where TensorRT takes no tensor; see ``Model``."""
        arrays = self._cache.arrays.values()
        return any(array.nbytes // len(array) % _ALIGNMENT for array in arrays)

    def push(self, rows: slice, states: Collection[str] | None = None) -> None:
        """Copies rows of the cache's arrays to the device; see ``Model``."""
        with self._copying():
            for past in self._states if states is None else states:
                array = self._cache.arrays[past][rows]
                self._device.upload(self._address(past, rows.start), array)

    def pull(self, rows: slice, states: Collection[str] | None = None) -> None:
        """Copies rows of the state to the cache's arrays; see ``Model``."""
        with self._copying():
            for past in self._states if states is None else states:
                array = self._cache.arrays[past][rows]
                self._device.download(array, self._address(past, rows.start))

    def move_slots(self, past: str, row: int, move: SlotMove) -> None:
        """Moves slots on the device, by way of a buffer: copies must not overlap; see ``Model``."""
        name = self._cache.states[past].name
        heads = slots_by_head(name, self._cache.arrays[past][row])
        pitch, slot = heads[0].nbytes, heads[0, 0].nbytes
        first, state = int(move.source[0]), self._address(past, row)
        line = (int(move.source[-1]) + 1 - first) * slot
        self._device.enter()
        buffer = self._buffer("slots", [len(heads), line])
        with self._copying():
            copy = self._device.copy_lines
            copy(buffer, state + first * slot, len(heads), line, line, pitch)
            for source, target, count in move.runs():
                there, here = state + target * slot, buffer + (source - first) * slot
                copy(there, here, len(heads), count * slot, pitch, line)

    @contextlib.contextmanager
    def _copying(self) -> Iterator[None]:
        """Copies of the state; they are done when it ends."""
        try:
            self._device.enter()
            yield
            self._device.synchronise()
        except SessionError as error:
            with contextlib.suppress(SessionError):
                self._device.synchronise()  # copies of arrays that the caller may change
            raise copy_failed(self._engine.name, str(error)) from error

    def release(self, rows: slice) -> None:
        """Nothing: the device keeps the memory for the next text."""

    def release_slots(self, group: int, row: int, first: int) -> None:
        """Nothing, likewise."""

    def run(
        self,
        control: dict[str, npt.NDArray[Any]],
        logits: npt.NDArray[np.float32] | None,
        shape: tuple[int, ...],
        first: int = 0,
    ) -> None:
        """Runs the engine once; see ``Model``."""
        context = self._covering(control["input_ids"].shape, shape[1])
        given = {name: np.ascontiguousarray(x, self._types[name]) for name, x in control.items()}
        if self._logits.shape != shape:
            self._logits = np.empty(shape, self._logits.dtype)
        self._device.enter()
        try:
            self._place(context, first, shape[0])
            self._queue(context, given, wanted=logits is not None)
        except SessionError:
            with contextlib.suppress(SessionError):
                self._device.synchronise()  # copies of what is about to be freed
            raise
        try:
            self._device.synchronise()
        except SessionError as error:
            raise call_failed(self._engine.name, str(error)) from error
        if logits is not None:
            logits[...] = self._logits

    def _place(self, context: TensorrtContext, first: int, rows: int) -> None:
        """Binds some rows of the state; the context passes on only what has changed."""
        for past, array in self._cache.arrays.items():
            address = self._address(past, first)
            context.reshape(past, (rows, *array.shape[1:]))
            context.bind(past, address)
            context.bind(self._cache.states[past].present, address)

    def _queue(
        self, context: TensorrtContext, given: dict[str, npt.NDArray[Any]], *, wanted: bool
    ) -> None:
        for name, array in (*given.items(), ("logits", self._logits)):
            context.bind(name, self._buffer(name, array.shape, array.itemsize))
        for name, array in given.items():
            context.reshape(name, array.shape)
            self._device.upload(self._buffers[name][0], array)
        self._last = context
        context.run()
        if wanted:
            self._device.download(self._logits, self._buffers["logits"][0])

    def _covering(self, call: tuple[int, ...], positions: int) -> TensorrtContext:
        rows, tokens = call
        sizes = rows, tokens, positions, self._cache.capacity
        for profile, context in self._contexts.items():
            if profile.covers(*sizes):
                return context
        most = max((profile.tokens for profile in self._contexts), default=0)
        raise SessionError(
            f"the engine has no profile for {tokens} new tokens per row, it takes up to {most} in "
            "one call; use prefill(), or run: minicache build-engine "
            f"{self._engine.path.parent} --chunk {tokens}"
        )

    def _buffer(self, name: str, shape: Sequence[int], itemsize: int = 1) -> int:
        (address, room), size = self._buffers.get(name, (0, 0)), math.prod(shape) * itemsize
        if size > room:
            if room:
                del self._buffers[name]
                self._device.free(address)
            address = self._allocate(size, shape)
            self._buffers[name] = address, size
        return address

    def state_pointers(self) -> dict[str, tuple[int, int]]:
        """Addresses of the state in the last run, and of its output; equal in place."""
        if self._last is None:
            return {past: (address, address) for past, address in self._states.items()}
        return {
            past: (self._last.address(past), self._last.address(self._cache.states[past].present))
            for past in self._states
        }

    def close(self) -> None:
        """Gives back the engine and all memory."""
        with contextlib.suppress(SessionError):  # a failed kernel breaks the whole context
            self._device.enter()
            self._device.synchronise()
        self._last = None
        self._contexts.clear()
        self._engine.close()
        self._device.close()
