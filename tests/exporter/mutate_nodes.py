"""Mutations of nodes: dropped, doubled, rewired, or of another operator."""

from __future__ import annotations

import random
from collections.abc import Callable

import onnx
from onnx import NodeProto, helper

GraphMutation = Callable[[onnx.ModelProto, random.Random], None]

# Where the exporter looks closest; half of all picks fall on these.
HOT = frozenset((
    "Concat", "Softmax", "MatMul", "GroupQueryAttention", "Attention", "MultiHeadAttention",
    "Transpose", "Reshape", "Expand", "Unsqueeze", "Where", "Mul", "Tanh", "Range", "Shape",
))  # fmt: skip
OPERATORS = (
    "Identity", "Relu", "Softmax", "MatMul", "Concat", "Transpose", "Reshape", "Attention",
    "MultiHeadAttention", "Loop", "If", "Split", "Constant", "Size", "NonZero", "Slice",
    "Gather", "Cast", "TensorScatter", "ScatterND", "Einsum", "Scan", "LSTM",
)  # fmt: skip


def pick(model: onnx.ModelProto, rng: random.Random, *op_types: str) -> NodeProto:
    """A node; of given operators where the graph has one of them."""
    nodes = list(model.graph.node) or [model.graph.node.add()]
    wanted = frozenset(op_types) or (HOT if rng.random() < 0.5 else frozenset())
    found = [node for node in nodes if node.op_type in wanted]
    return rng.choice(found or nodes)


def value_names(model: onnx.ModelProto) -> list[str]:
    """Every value that a node could read."""
    graph = model.graph
    names = [value.name for value in graph.input] + [tensor.name for tensor in graph.initializer]
    return [*names, *(name for node in graph.node for name in node.output if name)] or ["x"]


def splice(model: onnx.ModelProto, name: str, node: NodeProto, result: str) -> None:
    """Puts a node that reads ``name`` before everything else that reads it."""
    for other in model.graph.node:
        for index, read in enumerate(other.input):
            if read == name:
                other.input[index] = result
    model.graph.node.insert(0, node)


def drop_node(model: onnx.ModelProto, rng: random.Random) -> None:
    model.graph.node.remove(pick(model, rng))


def drop_many_nodes(model: onnx.ModelProto, rng: random.Random) -> None:
    for _ in range(rng.randint(2, 40)):
        drop_node(model, rng)


def drop_all_nodes(model: onnx.ModelProto, rng: random.Random) -> None:
    del model.graph.node[:]


def bypass_node(model: onnx.ModelProto, rng: random.Random) -> None:
    """Its readers read its first input instead: a graph that still fits together."""
    node = pick(model, rng)
    if node.input and node.output:
        result, source = node.output[0], node.input[0]
        model.graph.node.remove(node)
        splice(model, result, helper.make_node("Identity", [source], [result]), source)


def double_node(model: onnx.ModelProto, rng: random.Random) -> None:
    model.graph.node.append(pick(model, rng))


def shuffle_nodes(model: onnx.ModelProto, rng: random.Random) -> None:
    nodes = list(model.graph.node)
    rng.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def rename_nodes(model: onnx.ModelProto, rng: random.Random) -> None:
    name = rng.choice(("", "same", "a\nb", "x" * 5000, "[red]", "../x", "\x00"))
    for node in model.graph.node:
        node.name = name


def rewire_input(model: onnx.ModelProto, rng: random.Random) -> None:
    node = pick(model, rng)
    if node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice(value_names(model))


def swap_inputs(model: onnx.ModelProto, rng: random.Random) -> None:
    node = pick(model, rng)
    names = list(node.input)
    rng.shuffle(names)
    node.input[:] = names


def drop_node_inputs(model: onnx.ModelProto, rng: random.Random) -> None:
    node = pick(model, rng)
    node.input[:] = list(node.input)[: rng.randrange(max(1, len(node.input)))]


def blank_node_input(model: onnx.ModelProto, rng: random.Random) -> None:
    node = pick(model, rng)
    if node.input:
        node.input[rng.randrange(len(node.input))] = ""


def add_node_inputs(model: onnx.ModelProto, rng: random.Random) -> None:
    pick(model, rng).input.extend(rng.choices(value_names(model), k=rng.choice((1, 2, 200))))


def drop_node_outputs(model: onnx.ModelProto, rng: random.Random) -> None:
    node = pick(model, rng)
    node.output[:] = list(node.output)[: rng.randrange(max(1, len(node.output)))]


def blank_node_output(model: onnx.ModelProto, rng: random.Random) -> None:
    node = pick(model, rng)
    if node.output:
        node.output[rng.randrange(len(node.output))] = ""


def other_operator(model: onnx.ModelProto, rng: random.Random) -> None:
    odd = ("NoSuchOperator", "", "Ünknown", "A" * 9999)
    pick(model, rng).op_type = rng.choice((*OPERATORS, *odd))


def other_domain(model: onnx.ModelProto, rng: random.Random) -> None:
    domains = ("com.example", "com.microsoft", "", "ai.onnx", "ai.onnx.ml", "com.minicache")
    pick(model, rng).domain = rng.choice((*domains, "x" * 9999))


def custom_operator(model: onnx.ModelProto, rng: random.Random) -> None:
    """An operator that nobody knows, in the way of the attention."""
    node = pick(model, rng, "Softmax", "GroupQueryAttention", "Concat", "Transpose")
    if node.output:
        name = rng.choice(list(node.output))
        new = helper.make_node("Mystery", [name], ["mystery"], domain="com.example", path="/x.so")
        splice(model, name, new, "mystery")
        model.opset_import.append(helper.make_opsetid("com.example", 1))


def between(model: onnx.ModelProto, rng: random.Random) -> None:
    """A known operator in the way of the attention."""
    node = pick(model, rng, "Softmax", "GroupQueryAttention", "Concat", "Transpose", "MatMul")
    if node.output:
        name, kind = rng.choice(list(node.output)), rng.choice(OPERATORS)
        splice(model, name, helper.make_node(kind, [name], ["between"]), "between")


def deep_chain(model: onnx.ModelProto, rng: random.Random) -> None:
    """Thousands of steps where there was none."""
    name = rng.choice(list(pick(model, rng).output) or value_names(model))
    length, kind = rng.choice((50, 3000)), rng.choice(("Identity", "Cast", "Mul", "Sqrt", "Neg"))
    steps = [f"chain{index}" for index in range(length)]
    for read, made in zip([name, *steps], steps, strict=False):
        inputs = [read, read] if kind == "Mul" else [read]
        node = helper.make_node(kind, inputs, [made], **({"to": 1} if kind == "Cast" else {}))
        if made == steps[0]:
            splice(model, name, node, steps[-1])
        else:
            model.graph.node.append(node)


def crowd(model: onnx.ModelProto, rng: random.Random) -> None:
    """Very many nodes, inputs or outputs that nobody needs."""
    count, name = 10_000, rng.choice(value_names(model))
    kind = rng.choice(("nodes", "readers", "inputs", "outputs"))
    if kind in ("nodes", "readers"):
        reads = [name if kind == "readers" else "input_ids"]
        new = [helper.make_node("Identity", reads, [f"crowd{i}"]) for i in range(count)]
        model.graph.node.extend(new)
    else:
        values = model.graph.input if kind == "inputs" else model.graph.output
        shape = ["b", 1, "past", 8]
        values.extend(helper.make_tensor_value_info(f"past.{i}", 1, shape) for i in range(count))


MUTATIONS: dict[str, GraphMutation] = {
    change.__name__: change
    for change in (
        drop_node, drop_many_nodes, drop_all_nodes, bypass_node, double_node, shuffle_nodes,
        rename_nodes, rewire_input, swap_inputs, drop_node_inputs, blank_node_input,
        add_node_inputs, drop_node_outputs, blank_node_output, other_operator, other_domain,
        custom_operator, between, deep_chain, crowd,
    )
}  # fmt: skip
