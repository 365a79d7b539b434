"""Judges an exported graph attention node by attention node, whatever surrounds the nodes.

ONNX Runtime runs the whole graph, with what enters and leaves every ``MiniCacheAttention`` node
added to its outputs; the reference then computes each node from the same inputs and the state as
it was before the call. So no other operator of the graph needs a second implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper

from minicache.exporter import schemas
from minicache.plugins.reference import run_node
from minicache.runtime.cache import Cache
from minicache.runtime.manifest import Manifest
from tests.helpers import poison
from tests.plugins.comparison import Judge

Array = np.ndarray
Call = tuple[Array, Array, Array]  # token ids [B, S], past and total lengths [B]
Change = Callable[[onnx.ModelProto], None]


@dataclass(frozen=True)
class WatchedNode:
    """One attention node of a graph.

    Attributes:
        group: merge group whose state it reads.
        attributes: complete.
        inputs: name of the graph's tensor, by name of the op's input.
        attention: name of the tensor with its attention output.
    """

    group: int
    attributes: dict[str, Any]
    inputs: dict[str, str]
    attention: str

    @staticmethod
    def of(node: onnx.NodeProto) -> WatchedNode:
        """Reads a node."""
        given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        given = {n: v.decode() if isinstance(v, bytes) else v for n, v in given.items()}
        attributes = schemas.attributes_with_defaults(given)
        inputs = dict(zip(schemas.input_names(attributes), node.input, strict=True))
        group = int(inputs["past_exact_key"].split(".")[1])
        return WatchedNode(group, attributes, inputs, node.output[0])


class NodeByNode:
    """An exported folder under watch; its memory is poisoned at the start.

    Args:
        folder: an export for ``ort-cpu``; a second graph file is written into it.
        library: of the operator.
        batch: rows.
        capacity: tokens per row.
        change: makes the graph that runs another than the graph that is judged: to see the judge
            object.

    Attributes:
        cache: the state that the kernels update in place.
        judges: of every group, by its number.
    """

    def __init__(
        self,
        folder: Path,
        library: Path,
        batch: int,
        capacity: int,
        change: Change | None = None,
    ) -> None:
        self.manifest = Manifest.load(folder)
        self.cache = Cache(self.manifest, batch, capacity)
        model = onnx.load(folder / self.manifest.model)
        graph = model.graph
        found = [node for node in graph.node if node.domain == schemas.DOMAIN]
        self.nodes = [WatchedNode.of(node) for node in found]
        self._constants = {x.name: numpy_helper.to_array(x) for x in graph.initializer}
        fed = {value.name for value in graph.input} | set(self._constants)
        seen = [n for node in self.nodes for n in (*node.inputs.values(), node.attention)]
        self._watched = [name for name in dict.fromkeys(seen) if name not in fed]
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in self._watched)
        if change is not None:
            change(model)
        path = folder / "watched.onnx"
        onnx.save(model, path)
        options = ort.SessionOptions()
        options.register_custom_ops_library(str(library))
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        self._session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        dtype = {"fp32": np.float32, "fp16": np.float16}[self.manifest.dtype]
        self.judges: dict[int, Judge] = {}
        for group in self.cache.groups:
            poison(self.cache.group(group))
            (writer,) = (n for n in self._of(group) if schemas.is_writer(n.attributes))
            self.judges[group] = Judge(writer.attributes, dtype)

    def _of(self, group: int) -> list[WatchedNode]:
        return [node for node in self.nodes if node.group == group]

    def step(self, call: Call) -> None:
        """Runs one call and judges every node of it; rows are padded on the right."""
        before = {past: array.copy() for past, array in self.cache.arrays.items()}
        ids, past, total = call
        last = np.maximum(total - past - 1, 0).astype(np.int64)
        fed = {"input_ids": ids, "past_lengths": past, "total_lengths": total}
        fed["logit_positions"] = last[:, None]
        got = self.run(fed)
        known = self._constants | fed | got | before
        for group, judge in self.judges.items():
            results = [
                run_node(n.attributes, {name: known[at] for name, at in n.inputs.items()})
                for n in self._of(group)
            ]
            outputs = [got[node.attention] for node in self._of(group)]
            after = self.cache.group(group)
            wanted = {name: results[-1][f"present_{name}"] for name in after}
            expected = [result["attention"] for result in results]
            judge.compare((outputs, expected), (after, wanted), (past, total))
        assert np.isfinite(got["logits"][total > past]).all(), "logits are not finite"

    def finish(self) -> None:
        """Checks over all steps that differing codes are rare."""
        for judge in self.judges.values():
            judge.finish()

    def run(self, fed: dict[str, Array]) -> dict[str, Array]:
        """Runs the graph; returns logits and what is watched, and updates ``cache`` in place."""
        binding = self._session.io_binding()
        states = {n: ort.OrtValue.ortvalue_from_numpy(a) for n, a in self.cache.arrays.items()}
        for past, value in states.items():
            assert value.data_ptr() == self.cache.arrays[past].ctypes.data, "the state was copied"
            binding.bind_ortvalue_input(past, value)
            binding.bind_ortvalue_output(self.cache.states[past].present, value)
        values = [ort.OrtValue.ortvalue_from_numpy(array) for array in fed.values()]
        for name, value in zip(fed, values, strict=True):
            binding.bind_ortvalue_input(name, value)
        names = ["logits", *self._watched]
        for name in names:
            binding.bind_output(name)
        self._session.run_with_iobinding(binding)
        outputs = binding.get_outputs()[len(states) :]
        return {name: value.numpy() for name, value in zip(names, outputs, strict=True)}


def ragged_calls(lengths: Sequence[Sequence[int]], vocabulary: int, seed: int = 0) -> list[Call]:
    """Calls that add so many random tokens to every row.

    Args:
        lengths: per call the new tokens of every row; 0: the row waits.
        vocabulary: ids below it.
        seed: of the ids.
    """
    rng = np.random.default_rng(seed)
    past = np.zeros(len(lengths[0]), np.int32)
    calls = []
    for new in lengths:
        total = past + np.asarray(new, np.int32)
        calls.append((rng.integers(0, vocabulary, (len(new), max(new))), past, total))
        past = total
    return calls
