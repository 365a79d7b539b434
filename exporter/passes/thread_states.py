"""Threads the state of each group through its nodes, as TensorRT's aliased plugins need it.

TensorRT orders nodes by the tensors between them, and copies a tensor that two of them alias. So
each node of a group takes every state from the node before and hands it on: one chain from the
graph's input to its output, in which no link has a second reader. Tried with TensorRT-RTX: nodes
that read a state without handing it on crash the builder, or leave a tensor that nothing writes.
"""

from __future__ import annotations

import onnx_ir as ir

from minicache.exporter import schemas
from minicache.exporter.passes.apply_plan import attention_nodes, attributes_of


class ThreadStatesPass(ir.passes.InPlacePass):
    """Gives readers the states as outputs, and every node what the plugin's parser asks for."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites the nodes, in layer order."""
        latest: dict[ir.Value, ir.Value] = {}
        nodes = attention_nodes(model)
        for index, node in enumerate(nodes):
            pasts = state_values(node)
            for place, past in zip(_state_places(node), pasts, strict=True):
                node.replace_input_with(place, latest.get(past, past))
            threaded = _returning_states(model.graph, node)
            latest |= zip(pasts, threaded.outputs[1:], strict=True)
            for attribute in schemas.PLUGIN_ATTRIBUTES:
                value = attribute.default
                if attribute.name == "carries_kernels":
                    value = int(index == 0)
                kind = ir.AttrString if attribute.kind == "string" else ir.AttrInt64
                threaded.attributes[attribute.name] = kind(attribute.name, value)
        return ir.passes.PassResult(model, modified=bool(nodes))

    def ensures(self, model: ir.Model) -> None:
        """Every chain is linear, from a graph input to a graph output."""
        outputs = set(model.graph.outputs)
        for node in attention_nodes(model):
            given = state_values(node)
            for value in given:
                if len(value.uses()) != 1 or value in outputs:
                    raise AssertionError(f"{value.name} has readers besides {node.name}")
                if not (value.is_graph_input() or value.producer() in attention_nodes(model)):
                    raise AssertionError(f"{value.name} comes from no attention node")
            for value in node.outputs[1:]:
                if len(value.uses()) + (value in outputs) != 1:
                    raise AssertionError(f"{value.name} of {node.name} leads nowhere, or twice")


def _state_places(node: ir.Node) -> range:
    """Where the states lie among the inputs of a node."""
    attributes = attributes_of(node)
    names = schemas.input_names(attributes)
    states = [f"past_{name}" for name in schemas.state_names(attributes)]
    start = names.index(states[0])
    return range(start, start + len(states))


def state_values(node: ir.Node) -> list[ir.Value]:
    """The states that a node reads, in schema order."""
    return [value for value in (node.inputs[place] for place in _state_places(node)) if value]


def _returning_states(graph: ir.Graph, node: ir.Node) -> ir.Node:
    """The node, or one in its place that has the states as outputs."""
    names = schemas.output_names(attributes_of(node), threaded=True)
    if len(node.outputs) == len(names):
        return node
    links = [
        ir.Value(name=f"{node.name}/{name}", type=source.type, shape=source.shape)
        for name, source in zip(names[1:], state_values(node), strict=True)
    ]
    old = node.outputs[0]
    attention = ir.Value(name=old.name, type=old.type, shape=old.shape)
    new = ir.Node(
        node.domain,
        node.op_type,
        list(node.inputs),
        attributes=list(node.attributes.values()),
        outputs=[attention, *links],
        name=node.name,
    )
    graph.insert_before(node, new)
    old.replace_all_uses_with(attention)
    graph.remove(node, safe=True)
    return new
