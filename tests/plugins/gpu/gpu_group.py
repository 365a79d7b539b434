"""Runs the launches of a group's nodes, as the C++ plan gives them, in Triton's interpreter.

The nodes' tensors, their tables and the scratch lie in this process; every pointer that the plan
passes is an address in it.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minicache.exporter import schemas
from minicache.plugins.gpu_plan import Launch, PlacedTensor, gpu_plan
from minicache.plugins.triton.signatures import SIGNATURES
from minicache.plugins.triton.variant import parse_key
from tests.helpers import Array, Call
from tests.plugins.triton.interpreter import Buffer, scratch, torch

State = dict[str, Array]
_TORCH = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "i32": torch.int32,
    "i16": torch.int16,
    "u8": torch.uint8,
}
_POINTED = 16  # bytes that a tensor claims at its address: kernels take no more than the address


class GpuGroup:
    """A group on the plan and the interpreted kernels; like ``OrtGroup`` for ``Comparison``.

    Attributes:
        keys: of all variants that were launched.
        most_launches: of one call of a node.
    """

    def __init__(
        self,
        attributes: dict[str, Any],
        state: State,
        dtype: Any = np.float16,
        tables: Sequence[State] = (),
        options: Mapping[str, int] | None = None,
    ) -> None:
        self.attributes, self.tables, self.dtype = attributes, tables, np.dtype(dtype)
        # Splits and chunks that small texts fill.
        self.options = {"split_tokens": 32} | dict(options or {})
        self.keys: set[str] = set()
        self.most_launches = 0
        self._state = {name: Buffer(array, written=True) for name, array in state.items()}

    @property
    def state(self) -> State:
        """The arrays that the kernels update, by state name."""
        return {name: buffer.array for name, buffer in self._state.items()}

    def run(self, call: Call) -> list[Array]:
        """Runs one call; returns the attention of every layer and updates ``state``."""
        return [self._run_node(slot, call) for slot in range(self.attributes["group_size"])]

    def _run_node(self, slot: int, call: Call) -> Array:
        full = schemas.attributes_with_defaults({**self.attributes, "group_slot": slot})
        buffers = self._inputs(full, slot, call)
        attention = scratch(call.queries[slot].shape, self.dtype)
        placed = {name: _place(buffer) for name, buffer in buffers.items()}
        placed["attention"] = _place(attention)
        sizes = gpu_plan(full, placed, options=self.options)
        table = Buffer(np.array(sizes.table, np.int32))
        memory = scratch((sizes.scratch,), np.uint8)
        where = {"table": table.array.ctypes.data, "scratch": memory.array.ctypes.data}
        plan = gpu_plan(full, placed, options=self.options, **where)
        self.most_launches = max(self.most_launches, len(plan.launches))
        writer = schemas.is_writer(full)
        for name, buffer in self._state.items():
            buffer.written = writer
            assert f"past_{name}" in buffers
        guarded = {**buffers, "attention": attention, "table": table, "scratch": memory}
        before = {name: buffer.snapshot() for name, buffer in guarded.items()}
        for launch in plan.launches:
            self.keys.add(launch.key)
            run_launch(launch)
        for name, buffer in guarded.items():
            assert buffer.snapshot() == before[name], f"layer {slot}: a kernel wrote beyond {name}"
        return attention.array

    def _inputs(self, full: dict[str, Any], slot: int, call: Call) -> dict[str, Buffer]:
        arrays = {"query": call.queries[slot], "key": call.keys[slot], "value": call.values[slot]}
        arrays |= {"past_lengths": call.past, "total_lengths": call.total}
        arrays |= {"attention_bias": call.bias} if call.bias is not None else {}
        arrays |= {"head_sink": call.sink} if call.sink is not None else {}
        arrays |= self.tables[slot] if self.tables else {}
        for other in range(slot):
            arrays |= {f"k_{other}": call.keys[other], f"v_{other}": call.values[other]}
        states = {f"past_{name}": buffer for name, buffer in self._state.items()}
        names = schemas.input_names(full)
        return {n: states[n] if n in states else Buffer(np.asarray(arrays[n])) for n in names}


def _place(buffer: Buffer) -> PlacedTensor:
    array = buffer.array
    return PlacedTensor(array.dtype.name, array.shape, array.ctypes.data)


def run_launch(launch: Launch) -> None:
    """Runs one launch of the plan in the interpreter, its arguments checked by the signature."""
    variant = parse_key(launch.key)
    signature, types = SIGNATURES[variant.kernel], dict(variant.types)
    kinds = [argument.kind for argument in signature.arguments]
    assert [kind for kind, _ in launch.arguments] == kinds, launch.key
    passed = []
    for argument, (kind, value) in zip(signature.arguments, launch.arguments, strict=True):
        if argument.hinted and variant.hinted:
            assert value % 16 == 0, f"{argument.name} of {launch.key} is {value}"
        if kind == "p":
            passed.append(_pointer(int(value), types.get(argument.element, argument.element)))
        else:
            passed.append(float(np.float32(value)) if kind == "f" else value)
    module = importlib.import_module(f"minicache.plugins.triton.{variant.kernel}")
    kernel = getattr(module, variant.kernel)
    with np.errstate(all="ignore"):
        kernel[launch.grid](*passed, **dict(variant.constants))


_nowhere = (ctypes.c_uint8 * _POINTED)()


def _pointer(address: int, element: str) -> Any:
    """A tensor at an address; a null pointer, which no kernel follows, gets memory of its own."""
    memory = (ctypes.c_uint8 * _POINTED).from_address(address) if address else _nowhere
    return torch.frombuffer(memory, dtype=_TORCH[element])
