"""A group whose nodes run on a GPU as the C++ plan and launcher have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from benchmarks.gpu.memory import Array, Buffer, poisoned
from benchmarks.gpu.native import Launcher, LaunchList
from minicache.exporter import schemas
from minicache.plugins.gpu_plan import Launch, PlacedTensor, gpu_plan
from tests.helpers import Call

State = dict[str, Array]


class Engine(Protocol):
    """What runs launches, and where the memory for them lies."""

    device: str

    def table(self, values: Sequence[int]) -> int:
        """Address of integers that stay."""
        ...

    def load(self, launches: Sequence[Launch]) -> Any:
        """Makes launches ready."""
        ...

    def enqueue(self, loaded: Any) -> None:
        """Runs them after what was enqueued before."""
        ...


class GpuEngine:
    """The launcher, on PyTorch's current stream."""

    device = "cuda"

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher
        self.table = launcher.table

    def load(self, launches: Sequence[Launch]) -> LaunchList:
        """Loads the kernels."""
        return self.launcher.load(launches)

    def enqueue(self, loaded: LaunchList) -> None:
        """Enqueues without waiting."""
        self.launcher.enqueue(loaded, torch.cuda.current_stream().cuda_stream)


class InterpreterEngine:
    """Triton's interpreter, on memory of the host."""

    device = "cpu"

    def __init__(self) -> None:
        # Only here: it needs what the tests need.
        from tests.plugins.gpu.gpu_group import run_launch

        self._run = run_launch
        self._tables: list[Array] = []

    def table(self, values: Sequence[int]) -> int:
        """Address of integers that stay."""
        self._tables.append(np.array(values, np.int32))
        return int(self._tables[-1].ctypes.data)

    def load(self, launches: Sequence[Launch]) -> list[Launch]:
        """Needs nothing."""
        return list(launches)

    def enqueue(self, loaded: list[Launch]) -> None:
        """Runs every program, one after the other."""
        for launch in loaded:
            self._run(launch)


def node_inputs(
    attributes: Mapping[str, Any], call: Call, state: State, tables: Sequence[State]
) -> State:
    """The inputs of a node by name; ``attributes`` are complete, ``group_slot`` the node's."""
    slot = attributes["group_slot"]
    arrays = {"query": call.queries[slot], "key": call.keys[slot], "value": call.values[slot]}
    arrays |= {"past_lengths": call.past, "total_lengths": call.total}
    arrays |= {"attention_bias": call.bias} if call.bias is not None else {}
    arrays |= {"head_sink": call.sink} if call.sink is not None else {}
    arrays |= tables[slot] if tables else {}
    arrays |= {f"past_{name}": array for name, array in state.items()}
    for other in range(slot):
        arrays |= {f"k_{other}": call.keys[other], f"v_{other}": call.values[other]}
    return {name: np.asarray(arrays[name]) for name in schemas.input_names(attributes)}


def node_attributes(attributes: Mapping[str, Any], slot: int) -> dict[str, Any]:
    """Of a layer's node."""
    return schemas.attributes_with_defaults({**attributes, "group_slot": slot})


def call_keys(
    attributes: Mapping[str, Any], call: Call, state: State, tables: Sequence[State]
) -> list[str]:
    """The kernels that a call launches, where tensors are aligned; no device is needed."""
    keys: dict[str, None] = {}
    for slot in range(attributes["group_size"]):
        full = node_attributes(attributes, slot)
        inputs = node_inputs(full, call, state, tables) | {"attention": call.queries[slot]}
        placed = {n: PlacedTensor(a.dtype.name, a.shape) for n, a in inputs.items()}
        keys |= dict.fromkeys(launch.key for launch in gpu_plan(full, placed).launches)
    return list(keys)


@dataclass
class NodeCall:
    """A call of a node, ready to run.

    Attributes:
        inputs: its buffers by name, states among them.
        attention: what it writes.
        loaded: its launches.
    """

    inputs: dict[str, Buffer]
    attention: Buffer
    guarded: list[Buffer]
    loaded: Any


class DeviceGroup:
    """A group with its state on a device, as ``Comparison`` of the tests takes it.

    Attributes:
        buffers: of the state, by name.
    """

    def __init__(
        self,
        engine: Engine,
        attributes: dict[str, Any],
        state: State,
        dtype: Any = np.float16,
        tables: Sequence[State] = (),
        options: Mapping[str, int] | None = None,
    ) -> None:
        self.engine, self.attributes, self.tables = engine, attributes, tables
        self.dtype, self.options = np.dtype(dtype), options
        self.buffers = {n: Buffer(n, a, engine.device) for n, a in state.items()}

    @property
    def state(self) -> State:
        """A copy of the state on the host."""
        return {name: buffer.array for name, buffer in self.buffers.items()}

    def write(self, state: State) -> None:
        """Replaces the state."""
        for name, buffer in self.buffers.items():
            buffer.write(state[name])

    def run(self, call: Call) -> list[Array]:
        """Runs one call; returns the attention of every layer and updates the state."""
        nodes = self.prepare(call)
        self.enqueue(nodes)
        return self.results(nodes)

    def prepare(self, call: Call) -> list[NodeCall]:
        """Places a call's tensors, and plans it."""
        return [self._prepare(slot, call) for slot in range(self.attributes["group_size"])]

    def rewrite(self, nodes: Sequence[NodeCall], call: Call) -> None:
        """Puts another call of the same shapes into the place of one that was prepared."""
        for slot, node in enumerate(nodes):
            full = node_attributes(self.attributes, slot)
            states = dict.fromkeys(self.buffers, _NOTHING)
            for name, array in node_inputs(full, call, states, self.tables).items():
                if array is not _NOTHING:
                    node.inputs[name].write(array)

    def enqueue(self, nodes: Sequence[NodeCall]) -> None:
        """Enqueues the launches of all nodes."""
        for node in nodes:
            self.engine.enqueue(node.loaded)

    def results(self, nodes: Sequence[NodeCall]) -> list[Array]:
        """Waits; returns what the nodes wrote, and looks for what they must not write."""
        if self.engine.device != "cpu":
            torch.cuda.synchronize()
        for node in nodes:
            for buffer in node.guarded:
                buffer.check()
        return [node.attention.array for node in nodes]

    def _prepare(self, slot: int, call: Call) -> NodeCall:
        full, device = node_attributes(self.attributes, slot), self.engine.device
        arrays = node_inputs(full, call, dict.fromkeys(self.buffers, _NOTHING), self.tables)
        inputs = {
            name: self.buffers.get(name.removeprefix("past_")) or Buffer(name, array, device)
            for name, array in arrays.items()
        }
        attention = poisoned("attention", call.queries[slot].shape, self.dtype, device)
        placed = {name: buffer.placed for name, buffer in inputs.items()}
        placed["attention"] = attention.placed
        sizes = gpu_plan(full, placed, options=self.options)
        scratch = poisoned("scratch", (sizes.scratch,), np.uint8, device)
        where = {"table": self.engine.table(sizes.table), "scratch": scratch.placed.address}
        plan = gpu_plan(full, placed, options=self.options, **where)
        loaded = self.engine.load(plan.launches)
        return NodeCall(inputs, attention, [*inputs.values(), attention, scratch], loaded)


_NOTHING = np.zeros(0, np.uint8)  # stands for a state whose buffer is there already
