"""Adds nodes to a graph, with names, types and shapes, in one line each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

PREFIX = "minicache"


class Inserter:
    """Inserts nodes before one node of a graph.

    Args:
        graph: the graph.
        anchor: node that everything is inserted before.
        scope: middle part of the new names, e.g. ``layer3``.
    """

    def __init__(self, graph: ir.Graph, anchor: ir.Node, scope: str) -> None:
        self.graph, self.anchor, self.scope = graph, anchor, scope
        self.added = 0

    def constant(self, name: str, array: np.ndarray) -> ir.Value:
        """A weight, shared by name over the whole graph."""
        full = f"{PREFIX}/{name}"
        if full in self.graph.initializers:
            return self.graph.initializers[full]
        tensor = ir.tensor(array, name=full)
        value = ir.Value(
            name=full,
            type=ir.TensorType(tensor.dtype),
            shape=ir.Shape(array.shape),
            const_value=tensor,
        )
        self.graph.register_initializer(value)
        return value

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        dtype: ir.DataType,
        shape: Sequence[int | str] | Sequence[int | str | None],
        attributes: Mapping[str, Any] | None = None,
        domain: str = "",
    ) -> ir.Value:
        """Inserts a node with one output and returns that."""
        output = ir.Value(type=ir.TensorType(dtype), shape=ir.Shape(shape))
        self.insert(op_type, inputs, [output], attributes, domain)
        return output

    def insert(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        outputs: Sequence[ir.Value],
        attributes: Mapping[str, Any] | None = None,
        domain: str = "",
        name: str | None = None,
    ) -> ir.Node:
        """Inserts a node with given outputs; those without a name get one."""
        name = name or f"{PREFIX}/{self.scope}/{op_type}_{self.added}"
        self.added += 1
        for index, output in enumerate(outputs):
            if output.name is None:
                output.name = f"{name}/output_{index}"
        node = ir.node(
            op_type, list(inputs), dict(attributes or {}), domain=domain, outputs=outputs, name=name
        )
        self.graph.insert_before(self.anchor, node)
        return node


def first_node(graph: ir.Graph) -> ir.Node:
    """The node to insert before when something must come before everything."""
    return next(iter(graph))
