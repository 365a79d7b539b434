"""Mutations of what a graph is built of: cycles, subgraphs, functions, opsets, metadata."""

from __future__ import annotations

import random

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from tests.exporter.mutate_attributes import INTEGERS
from tests.exporter.mutate_nodes import OPERATORS, GraphMutation, pick, splice

VERSIONS = (0, -1, 1, 7, 9, 12, 13, 20, 22, 23, 24, 99, 2**31, 2**62, -(2**63))
LONG_LOOP = 2**62


def self_loop(model: onnx.ModelProto, rng: random.Random) -> None:
    """A node reads its own output."""
    node = pick(model, rng)
    if node.input and node.output:
        node.input[rng.randrange(len(node.input))] = rng.choice(list(node.output))


def cycle(model: onnx.ModelProto, rng: random.Random) -> None:
    """An early node reads what a later one gives."""
    nodes = [node for node in model.graph.node if node.input and node.output]
    if len(nodes) > 1:
        first, second = sorted(rng.sample(range(len(nodes)), 2))
        nodes[first].input[rng.randrange(len(nodes[first].input))] = nodes[second].output[0]


def identity_cycle(model: onnx.ModelProto, rng: random.Random) -> None:
    """Identities that read each other, on some edge."""
    name = rng.choice(list(pick(model, rng).output) or ["x"])
    model.graph.node.append(helper.make_node("Identity", ["ring_b"], ["ring_a"]))
    splice(model, name, helper.make_node("Identity", ["ring_a"], ["ring_b"]), "ring_a")


def same_name_twice(model: onnx.ModelProto, rng: random.Random) -> None:
    """Two nodes give a value of the same name."""
    one, two = pick(model, rng), pick(model, rng)
    if one.output and two.output:
        one.output[0] = two.output[0]


def output_named_like_input(model: onnx.ModelProto, rng: random.Random) -> None:
    node = pick(model, rng)
    if node.output and model.graph.input:
        node.output[0] = rng.choice(list(model.graph.input)).name


def _graph(
    nodes: list[NodeProto], outputs: list[str], inputs: list[str] | None = None
) -> GraphProto:
    return helper.make_graph(
        nodes,
        "body",
        [onnx.ValueInfoProto(name=name) for name in inputs or []],
        [onnx.ValueInfoProto(name=name) for name in outputs],
    )


def _true(model: onnx.ModelProto, name: str) -> str:
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), name))
    return name


def behind_if(model: onnx.ModelProto, rng: random.Random) -> None:
    """A value passes an ``If``, with bodies that are right, empty, or read what is not there."""
    name = rng.choice(list(pick(model, rng).output) or ["x"])
    right = _graph([helper.make_node("Identity", [name], ["inner"])], ["inner"])
    odd = rng.choice(
        (
            right,
            _graph([], []),
            _graph([], [name]),
            _graph([], ["nowhere"]),
            _graph([helper.make_node("Identity", ["nowhere"], ["inner"])], ["inner"]),
            _graph([helper.make_node("Identity", ["inner"], ["inner"])], ["inner"]),
            _graph([helper.make_node("Identity", ["behind"], ["inner"])], ["inner"]),
        )
    )
    node = helper.make_node("If", [_true(model, "yes")], ["behind"], then_branch=right)
    node.attribute.append(helper.make_attribute("else_branch", odd))
    splice(model, name, node, "behind")


def nested_ifs(model: onnx.ModelProto, rng: random.Random) -> None:
    """Subgraphs in subgraphs, deeper than anybody needs."""
    name, condition = rng.choice(list(pick(model, rng).output) or ["x"]), _true(model, "yes")
    body = _graph([helper.make_node("Identity", [name], ["deep0"])], ["deep0"])
    depth = rng.choice((3, 20, 28))
    for level in range(1, depth):
        made = f"deep{level}"
        other = _graph([helper.make_node("Identity", [name], [f"else{level}"])], [f"else{level}"])
        node = helper.make_node("If", [condition], [made], then_branch=body, else_branch=other)
        body = _graph([node], [made])
    other = _graph([helper.make_node("Identity", [name], ["else"])], ["else"])
    node = helper.make_node("If", [condition], ["deep"], then_branch=body, else_branch=other)
    splice(model, name, node, "deep")


def long_loop(model: onnx.ModelProto, rng: random.Random) -> None:
    """A value passes a ``Loop`` that would take years, or one of no or one step."""
    name = rng.choice(list(pick(model, rng).output) or ["x"])
    condition = rng.choice((_true(model, "yes"), ""))
    loop_over(model, name, rng.choice((LONG_LOOP, LONG_LOOP, 0, 1, -1)), condition)


def loop_over(model: onnx.ModelProto, name: str, steps: int, condition: str = "") -> None:
    """Lets a value pass a ``Loop`` before it is read."""
    count = np.array(steps, np.int64)
    model.graph.initializer.append(numpy_helper.from_array(count, "steps"))
    step = helper.make_tensor_value_info("step", TensorProto.INT64, [])
    go, on = (helper.make_tensor_value_info(x, TensorProto.BOOL, []) for x in ("go", "on"))
    carried, result = (onnx.ValueInfoProto(name=x) for x in ("carried", "next"))
    nodes = [
        helper.make_node("Identity", ["go"], ["on"]),
        helper.make_node("Identity", ["carried"], ["next"]),
    ]
    body = helper.make_graph(nodes, "body", [step, go, carried], [on, result])
    node = helper.make_node("Loop", ["steps", condition, name], ["looped"], body=body)
    splice(model, name, node, "looped")


def huge_result(model: onnx.ModelProto, rng: random.Random) -> None:
    """A value grows by a constant shape beyond any memory."""
    name = rng.choice(list(pick(model, rng).output) or ["x"])
    sizes = rng.choice(([2**40, 1, 1, 1], [2**20] * 4, [2**62], [10**5, 10**5, 1, 1], [-5]))
    model.graph.initializer.append(numpy_helper.from_array(np.array(sizes, np.int64), "huge"))
    splice(model, name, helper.make_node("Expand", [name, "huge"], ["grown"]), "grown")


def own_function(model: onnx.ModelProto, rng: random.Random) -> None:
    """A function in the model takes an operator's name; it may call itself."""
    kind = pick(model, rng)
    inside = rng.choice((kind.op_type, *OPERATORS))
    body = [helper.make_node(inside, ["a"], ["b"], domain=rng.choice((kind.domain, "")))]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(kind.domain or "com.example", 1)]
    function = helper.make_function(kind.domain, kind.op_type, ["a"], ["b"], body, opsets)
    model.functions.extend([function] * rng.choice((1, 1, 2)))


def change_opset(model: onnx.ModelProto, rng: random.Random) -> None:
    if model.opset_import:
        rng.choice(list(model.opset_import)).version = rng.choice(VERSIONS)


def odd_opsets(model: onnx.ModelProto, rng: random.Random) -> None:
    """No opset, one twice, or domains of all kinds."""
    if rng.random() < 0.4:
        del model.opset_import[:]
    for _ in range(rng.randint(0, 3)):
        domain = rng.choice(("", "ai.onnx", "com.microsoft", "com.minicache", "ö", "x" * 999))
        model.opset_import.append(helper.make_opsetid(domain, rng.choice(VERSIONS)))


def change_ir_version(model: onnx.ModelProto, rng: random.Random) -> None:
    model.ir_version = rng.choice(VERSIONS)


def odd_metadata(model: onnx.ModelProto, rng: random.Random) -> None:
    """Properties that look like paths, code, templates, or our own notes."""
    texts = (
        "", "../../etc/passwd", "__import__('os').abort()", "{{ 7 * 7 }}",
        "!!python/object:os.abort", "x" * 100_000, "\x00\x1b[31m", "minicache.path", "{" * 5000,
    )  # fmt: skip
    for owner in (model, model.graph, *model.graph.node[:5]):
        for _ in range(rng.randint(1, 3)):
            owner.metadata_props.add(key=rng.choice(texts)[:200], value=rng.choice(texts))
    model.producer_name = model.domain = model.doc_string = rng.choice(texts)
    model.graph.name = model.graph.doc_string = rng.choice(texts)
    model.model_version = rng.choice(INTEGERS)


def two_graphs_in_one(model: onnx.ModelProto, rng: random.Random) -> None:
    """The graph's nodes once more, as a concatenated protobuf gives."""
    model.graph.MergeFrom(GraphProto.FromString(model.graph.SerializeToString()))


def no_graph(model: onnx.ModelProto, rng: random.Random) -> None:
    model.ClearField("graph")


MUTATIONS: dict[str, GraphMutation] = {
    change.__name__: change
    for change in (
        self_loop, cycle, identity_cycle, same_name_twice, output_named_like_input, behind_if,
        nested_ifs, long_loop, huge_result, own_function, change_opset, odd_opsets,
        change_ir_version, odd_metadata, two_graphs_in_one, no_graph,
    )
}  # fmt: skip
