"""A merge group as a graph of its own: what TensorRT has to build, without a model around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from minicache.exporter import schemas
from minicache.plugins.gpu_plan import PlacedTensor
from tests.plugins.trt.trt_node import TrtNode

_TYPES = {
    "float16": TensorProto.FLOAT16,
    "float32": TensorProto.FLOAT,
    "int8": TensorProto.INT8,
    "int32": TensorProto.INT32,
}
_SHARED = ("past_lengths", "total_lengths", "attention_bias")
_WEIGHTS = ("decoder", "encoder", "step", "frequencies", "sink")
_OTHERS = ("k_", "v_")  # new keys and values of other layers
Call = dict[str, PlacedTensor]


class GroupGraph:
    """The nodes of a group; queries, keys, values and states are inputs of the graph.

    Attributes:
        model: the graph; the states go through all nodes as one chain each.
        inputs: of the graph, each with the node it belongs to and its name there.
    """

    def __init__(self, nodes: Sequence[TrtNode], **more: Any) -> None:
        self._nodes, self.inputs = nodes, dict[str, tuple[TrtNode, str]]()
        call = nodes[-1].tensors()
        weights, made, outputs = [], [], []
        links = {name: name for name in nodes[0].states}
        for slot, node in enumerate(nodes):
            names = []
            for name in node.inputs:
                at = self._place(name, slot)
                if name in links:
                    at = links[name]
                if any(word in name for word in _WEIGHTS):
                    part = node.tensors()[name]
                    weights.append(numpy_helper.from_array(np.ones(part.shape, part.dtype), at))
                elif name not in links or slot == 0:
                    self.inputs.setdefault(at, (node, name))
                names.append(at)
            last = slot == len(nodes) - 1
            for name in links:
                links[name] = f"present_{name[5:]}" if last else f"{name}.after{slot}"
            attributes = {**node.attributes, "carries_kernels": int(slot == 0)} | more
            attributes = {"plugin_namespace": schemas.DOMAIN, "plugin_version": "1"} | attributes
            results = [f"attention.{slot}", *links.values()]
            made.append(_make_node(names, results, f"layer.{slot}", attributes))
            outputs.append((f"attention.{slot}", "float16", 3))
        outputs += [(links[name], call[name].dtype, len(call[name].shape)) for name in links]
        inputs = [
            (name, part.dtype, len(part.shape))
            for name, part in ((at, node.tensors()[n]) for at, (node, n) in self.inputs.items())
        ]
        graph = helper.make_graph(
            made, "group", [*map(_value, inputs)], [*map(_value, outputs)], weights
        )
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid(schemas.DOMAIN, 1)]
        self.model = helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def profile(self, *calls: tuple[int, int, int]) -> dict[str, list[tuple[int, ...]]]:
        """Shapes of the graph's inputs in calls of some batch, new tokens and capacity."""
        return {
            at: [node.tensors(*call)[name].shape for call in calls]
            for at, (node, name) in self.inputs.items()
        }

    @staticmethod
    def _place(name: str, slot: int) -> str:
        if name in _SHARED:
            return name
        if name[:2] in _OTHERS:
            return f"{'key' if name[0] == 'k' else 'value'}.{name[2:]}"
        return f"{name}.{slot}"


def _make_node(
    inputs: list[str], outputs: list[str], name: str, attributes: dict[str, Any]
) -> onnx.NodeProto:
    given = {key: value for key, value in attributes.items() if value != ()}
    return helper.make_node(
        schemas.OP_TYPE, inputs, outputs, name=name, domain=schemas.DOMAIN, **given
    )


def _value(described: tuple[str, str, int]) -> onnx.ValueInfoProto:
    """All sizes are open: TensorRT takes them from the profile."""
    name, dtype, rank = described
    return helper.make_tensor_value_info(name, _TYPES[dtype], [f"{name}.{i}" for i in range(rank)])
