"""Stands in for ONNX Runtime on CUDA: values on the device have memory of their own."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime

from minicache.runtime.ort import CUDA
from tests.runtime.reference_graph import ReferenceBinding, ReferenceGraph


class DeviceValue:
    """What ``runtime.device_binding`` needs of an OrtValue on a device.

    Attributes:
        uploads: arrays that were copied to it.
    """

    def __init__(self, shape: Sequence[int], kind: Any, device: str, number: int) -> None:
        assert (device, number) == ("cuda", 0)
        # What an allocator leaves behind.
        self._array = np.empty(tuple(shape), kind)
        self._array.view(np.uint8)[...] = 0x7F
        self.uploads = 0

    @classmethod
    def at(cls, shape: Sequence[int], kind: Any, address: int) -> DeviceValue:
        """A value over memory that another one owns."""
        value = cls([0], kind, "cuda", 0)
        count = int(np.prod(shape)) * np.dtype(kind).itemsize
        memory = (ctypes.c_uint8 * count).from_address(address)
        value._array = np.frombuffer(memory, kind).reshape(shape)
        return value

    def update_inplace(self, array: np.ndarray) -> None:
        assert array.shape == self._array.shape and array.dtype == self._array.dtype
        self._array[...] = array
        self.uploads += 1

    def numpy(self) -> np.ndarray:
        return self._array.copy()

    def data_ptr(self) -> int:
        return int(self._array.ctypes.data)


class DeviceBinding(ReferenceBinding):
    """Also takes addresses on the device."""

    def bind_input(self, name: str, *place: Any) -> None:
        self.inputs[name] = self._value(*place)

    def bind_output(self, name: str, *place: Any) -> None:
        self.outputs[name] = self._value(*place)

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
        super().run_with_iobinding(binding)


def fake_onnxruntime() -> SimpleNamespace:
    """A module with what the runtime uses on a device."""
    return SimpleNamespace(
        __version__=onnxruntime.__version__,
        OrtValue=SimpleNamespace(ortvalue_from_shape_and_type=DeviceValue),
        RunOptions=onnxruntime.RunOptions,
        get_available_providers=lambda: [CUDA, "CPUExecutionProvider"],
    )
