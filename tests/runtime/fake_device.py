"""Stands in for ONNX Runtime on CUDA: values on the device have memory of their own."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnxruntime

from minicache.runtime.device_binding import DeviceModel
from minicache.runtime.ort import CUDA
from minicache.runtime.session import Session
from tests.runtime.reference_graph import ReferenceBinding, ReferenceGraph

# Copies that the host made since a test began: to the device or not, address there, bytes.
COPIES: list[tuple[bool, int, int]] = []


class DeviceValue:
    """What ``runtime.device_binding`` needs of an OrtValue on a device."""

    def __init__(self, shape: Sequence[int], kind: Any, device: str, number: int) -> None:
        assert (device, number) == ("cuda", 0)
        # What an allocator leaves behind.
        self._array = np.empty(tuple(shape), kind)
        self._array.view(np.uint8)[...] = 0x7F

    @classmethod
    def at(cls, shape: Sequence[int], kind: Any, address: int) -> DeviceValue:
        """A value over memory that another one owns."""
        assert address
        value = cls([0], kind, "cuda", 0)
        count = int(np.prod(shape)) * np.dtype(kind).itemsize
        memory = (ctypes.c_uint8 * count).from_address(address)
        value._array = np.frombuffer(memory, kind).reshape(shape)
        return value

    def update_inplace(self, array: np.ndarray) -> None:
        assert array.shape == self._array.shape and array.dtype == self._array.dtype
        self._array[...] = array
        COPIES.append((True, self.data_ptr(), array.nbytes))

    def numpy(self) -> np.ndarray:
        COPIES.append((False, self.data_ptr(), self._array.nbytes))
        return self._array.copy()

    def data_ptr(self) -> int:
        return int(self._array.ctypes.data)


class DeviceBinding(ReferenceBinding):
    """Also takes addresses on the device."""

    def bind_input(self, name: str, *place: Any) -> None:
        self.inputs[name] = self._value(*place)

    def bind_output(self, name: str, *place: Any) -> None:
        self.outputs[name] = self._value(*place)

    def clear_binding_outputs(self) -> None:
        self.outputs.clear()

    def _value(
        self, device: str, number: int, kind: Any, shape: Sequence[int], address: int
    ) -> DeviceValue:
        assert (device, number) == ("cuda", 0)
        return DeviceValue.at(shape, kind, address)


class DeviceGraph(ReferenceGraph):
    """A graph that only takes values on the device.

    Attributes:
        recordings: of each run, which recording it was; -1: none.
        shapes: of each run, rows and tokens.
    """

    def __init__(
        self,
        path: Path,
        threads: int | None,
        providers: Sequence[str],
        kernels: Path | None = None,
    ) -> None:
        super().__init__(path, threads, providers)
        assert providers[0] == CUDA and kernels is not None
        self.recordings: list[str] = []
        self.shapes: list[tuple[int, ...]] = []
        self.bindings = 0

    def get_providers(self) -> list[str]:
        return [CUDA, "CPUExecutionProvider"]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {CUDA: {"enable_cuda_graph": "1"}}

    def io_binding(self) -> DeviceBinding:
        self.bindings += 1
        return DeviceBinding()

    def run_with_iobinding(self, binding: ReferenceBinding, options: Any = None) -> None:
        for value in (*binding.inputs.values(), *binding.outputs.values()):
            assert isinstance(value, DeviceValue)
        self.shapes.append(binding.inputs["input_ids"].numpy().shape)
        self.recordings.append(options.get_run_config_entry("gpu_graph_id"))
        before = len(COPIES)
        super().run_with_iobinding(binding)
        del COPIES[before:]  # the kernels are on the device themselves


def state_copies(session: Session) -> list[tuple[bool, str, int, int]]:
    """What was copied of a session's state since the last time.

    Returns:
        Of each copy: to the device or not, name of the state, row, bytes.
    """
    found = []
    arrays, model = session._cache.arrays, cast("DeviceModel", session._model)
    for to_device, address, size in COPIES:
        for past in arrays:
            begin = model._address(past, 0)
            if begin <= address < begin + arrays[past].nbytes:
                row = (address - begin) // (arrays[past].nbytes // len(arrays[past]))
                found.append((to_device, past.split(".")[-1], row, size))
    COPIES.clear()
    return found


def fake_onnxruntime() -> SimpleNamespace:
    """A module with what the runtime uses on a device."""
    return SimpleNamespace(
        __version__=onnxruntime.__version__,
        OrtValue=SimpleNamespace(ortvalue_from_shape_and_type=DeviceValue),
        RunOptions=onnxruntime.RunOptions,
        get_available_providers=lambda: [CUDA, "CPUExecutionProvider"],
    )
