"""Mutations of attributes: other numbers, other types, missing, doubled, unknown."""

from __future__ import annotations

import random

import onnx
from onnx import AttributeProto, TensorProto, helper

from tests.exporter.mutate_nodes import HOT, GraphMutation, pick

INTEGERS = (0, 1, -1, 2, -2, 3, 7, 255, -(2**31), 2**31, 2**62, -(2**63), 2**63 - 1)
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e38, -1e38, float("nan"), float("inf"), float("-inf"))


def attributed(model: onnx.ModelProto, rng: random.Random) -> AttributeProto:
    """An attribute of some node."""
    nodes = [node for node in model.graph.node if node.attribute]
    if not nodes:
        return pick(model, rng).attribute.add(name="axis", type=AttributeProto.INT)
    hot = [node for node in nodes if node.op_type in HOT]
    node = rng.choice(hot if hot and rng.random() < 0.5 else nodes)
    return rng.choice(list(node.attribute))


def change_axis(model: onnx.ModelProto, rng: random.Random) -> None:
    found = [a for node in model.graph.node for a in node.attribute if a.name == "axis"]
    if found:
        rng.choice(found).i = rng.choice(INTEGERS)


def change_attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    attribute = attributed(model, rng)
    attribute.i, attribute.f = rng.choice(INTEGERS), rng.choice(FLOATS)
    if attribute.ints:
        attribute.ints[:] = rng.choices(INTEGERS, k=rng.choice((0, 1, 4, 5)))
    attribute.s = rng.choice((b"", b"\xff\xfe", b"DCR", b"x" * 9999))


def change_heads(model: onnx.ModelProto, rng: random.Random) -> None:
    """Another number of heads, window, scale or softcap, the same for all layers."""
    name = rng.choice(
        ("num_heads", "kv_num_heads", "q_num_heads", "local_window_size", "scale", "softcap")
    )
    number = rng.choice(FLOATS if name in ("scale", "softcap") else INTEGERS)
    for node in model.graph.node:
        if node.op_type.endswith("Attention"):
            kept = [attribute for attribute in node.attribute if attribute.name != name]
            kept.append(helper.make_attribute(name, number))
            node.ClearField("attribute")
            node.attribute.extend(kept)


def retype_attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    attribute = attributed(model, rng)
    attribute.type = rng.choice(range(15))
    attribute.ints[:], attribute.floats[:] = rng.choices(INTEGERS, k=3), rng.choices(FLOATS, k=3)


def drop_attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    nodes = [node for node in model.graph.node if node.attribute]
    if nodes:
        node = rng.choice(nodes)
        node.attribute.remove(rng.choice(list(node.attribute)))


def double_attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    node, attribute = pick(model, rng), attributed(model, rng)
    node.attribute.extend([attribute, attribute])
    node.attribute[-1].i = rng.choice(INTEGERS)


def odd_attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    names = ("axis", "perm", "to", "value", "axes", "scale", "do_rotary", "num_heads", "body", "é")
    attribute = pick(model, rng).attribute.add(name=rng.choice(names))
    attribute.type = rng.choice(range(15))


def change_permutation(model: onnx.ModelProto, rng: random.Random) -> None:
    node = pick(model, rng, "Transpose")
    del node.attribute[:]
    wrong = ([], [0], [0, 0, 0, 0], [-1, 2, 1, 3], [3, 2, 1, 0], list(range(99)), [2**62, 0, 1, 2])
    node.attribute.append(helper.make_attribute("perm", rng.choice(wrong), attr_type=7))


def odd_constant(model: onnx.ModelProto, rng: random.Random) -> None:
    """The value of a ``Constant`` is of another shape or type, or without its data."""
    node = pick(model, rng, "Constant")
    if node.op_type != "Constant":
        node = model.graph.node.add(op_type="Constant", output=["odd_constant"])
    del node.attribute[:]
    tensor = TensorProto(
        data_type=rng.choice((1, 7, 8, 9, 10, 0, 77)), dims=rng.choice(([], [0], [3], [2**40])),
        raw_data=rng.choice((b"", b"\x01" * 8, b"\xff" * 24)),
    )  # fmt: skip
    node.attribute.append(AttributeProto(name="value", type=AttributeProto.TENSOR, t=tensor))


MUTATIONS: dict[str, GraphMutation] = {
    change.__name__: change
    for change in (
        change_axis, change_attribute, change_heads, retype_attribute, drop_attribute,
        double_attribute, odd_attribute, change_permutation, odd_constant,
    )
}  # fmt: skip
