"""Mutations of values: graph inputs and outputs, their names, shapes and types."""

from __future__ import annotations

import random

import onnx
from onnx import TensorProto, ValueInfoProto, helper

from tests.exporter.mutate_nodes import GraphMutation, value_names

NAMES = (
    "", "logits", "input_ids", "past", "past_key_values.0.key", "present.0.value", "ä\n",
    "x" * 9999, "past_lengths", "past_minicache.0.exact_key", "minicache/positions", "encoder_x",
    "../../x", "past_key_values.99999999999999999999.key", "past_key_values.-1.key", "a\x00b",
)  # fmt: skip
DIMENSIONS = (0, 1, -1, -(2**63), 2, 3, 2**31, 2**40, 2**62, 2**63 - 1)
SYMBOLS = ("", "batch_size", "4", "99999999999999999999999", "-3", "a*b+", "x" * 9999, "²")
TYPES = (*range(24), 99, -1)


def infos(model: onnx.ModelProto, rng: random.Random) -> ValueInfoProto:
    """A graph input or output, sometimes an inner value."""
    values = [*model.graph.input, *model.graph.output]
    inner = list(model.graph.value_info)
    return rng.choice(inner if inner and rng.random() < 0.2 else values or [ValueInfoProto()])


def drop_input(model: onnx.ModelProto, rng: random.Random) -> None:
    if model.graph.input:
        model.graph.input.pop(rng.randrange(len(model.graph.input)))


def drop_output(model: onnx.ModelProto, rng: random.Random) -> None:
    if model.graph.output:
        model.graph.output.pop(rng.randrange(len(model.graph.output)))


def drop_all_inputs(model: onnx.ModelProto, rng: random.Random) -> None:
    del model.graph.input[:]


def drop_all_outputs(model: onnx.ModelProto, rng: random.Random) -> None:
    del model.graph.output[:]


def double_input(model: onnx.ModelProto, rng: random.Random) -> None:
    if model.graph.input:
        model.graph.input.append(rng.choice(list(model.graph.input)))


def double_output(model: onnx.ModelProto, rng: random.Random) -> None:
    if model.graph.output:
        model.graph.output.append(rng.choice(list(model.graph.output)))


def reorder_inputs_and_outputs(model: onnx.ModelProto, rng: random.Random) -> None:
    """Allowed: callers bind by name."""
    for values in (model.graph.input, model.graph.output):
        shuffled = list(values)
        rng.shuffle(shuffled)
        del values[:]
        values.extend(shuffled)


def swap_two_names(model: onnx.ModelProto, rng: random.Random) -> None:
    """Two inputs or two outputs trade places, e.g. key and value, or layer 0 and 1."""
    values = rng.choice((model.graph.input, model.graph.output))
    if len(values) > 1:
        one, two = rng.sample(range(len(values)), 2)
        values[one].name, values[two].name = values[two].name, values[one].name


def rename_info(model: onnx.ModelProto, rng: random.Random) -> None:
    """Only where it is declared: its readers lose it."""
    infos(model, rng).name = rng.choice((*NAMES, *value_names(model)))


def rename_everywhere(model: onnx.ModelProto, rng: random.Random) -> None:
    """A consistent new name, which may collide with one of ours."""
    value = infos(model, rng)
    old, new = value.name, rng.choice(NAMES)
    value.name = new
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]


def rename_all_caches(model: onnx.ModelProto, rng: random.Random) -> None:
    """Names without a system, or with the layers counted otherwise."""
    renamed = {}
    order = list(range(len(model.graph.input)))
    rng.shuffle(order)
    for number, value in zip(order, model.graph.input, strict=True):
        if "past" in value.name:
            style = rng.choice(("cache_{}", "k{}", "past.{}", "past.7.{}", "layer.0.{}x"))
            renamed[value.name] = style.format(number)
            value.name = renamed[value.name]
    for node in model.graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]


def change_dimension(model: onnx.ModelProto, rng: random.Random) -> None:
    dims = infos(model, rng).type.tensor_type.shape.dim
    if dims:
        dim = dims[rng.randrange(len(dims))]
        if rng.random() < 0.7:
            dim.dim_value = rng.choice(DIMENSIONS)
        else:
            dim.dim_param = rng.choice(SYMBOLS)


def change_every_dimension(model: onnx.ModelProto, rng: random.Random) -> None:
    number = rng.choice(DIMENSIONS)
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            dim.dim_value = number


def change_every_cache(model: onnx.ModelProto, rng: random.Random) -> None:
    """Heads, tokens or head size, the same for all caches."""
    axis, number = rng.choice((1, 1, 2, 3, 3)), rng.choice(DIMENSIONS)
    for value in (*model.graph.input, *model.graph.output):
        dims = value.type.tensor_type.shape.dim
        if len(dims) == 4:
            dims[axis].dim_value = number


def change_rank(model: onnx.ModelProto, rng: random.Random) -> None:
    shape = infos(model, rng).type.tensor_type.shape
    if rng.random() < 0.5 and shape.dim:
        del shape.dim[rng.randrange(len(shape.dim)) :]
    else:
        for _ in range(rng.choice((1, 3, 200))):
            shape.dim.add(dim_value=rng.choice(DIMENSIONS))


def drop_shapes(model: onnx.ModelProto, rng: random.Random) -> None:
    for value in rng.choice((model.graph.input, model.graph.output, model.graph.value_info)):
        value.type.tensor_type.ClearField("shape")


def drop_type(model: onnx.ModelProto, rng: random.Random) -> None:
    infos(model, rng).ClearField("type")


def change_element_type(model: onnx.ModelProto, rng: random.Random) -> None:
    infos(model, rng).type.tensor_type.elem_type = rng.choice(TYPES)


def change_cache_types(model: onnx.ModelProto, rng: random.Random) -> None:
    kind = rng.choice(TYPES)
    for value in (*model.graph.input, *model.graph.output):
        if "past" in value.name or "present" in value.name:
            value.type.tensor_type.elem_type = kind


def no_tensor(model: onnx.ModelProto, rng: random.Random) -> None:
    kind = infos(model, rng).type
    inner = helper.make_tensor_type_proto(TensorProto.FLOAT, [1, 2])
    wraps = (
        helper.make_sequence_type_proto, helper.make_optional_type_proto,
        lambda one: helper.make_map_type_proto(TensorProto.INT64, one),
        lambda one: helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, [1, 2]),
    )  # fmt: skip
    kind.CopyFrom(rng.choice(wraps)(inner))


def contradict_value_infos(model: onnx.ModelProto, rng: random.Random) -> None:
    """Inner values are declared with types and shapes that they do not have."""
    names = [name for node in model.graph.node for name in node.output if name]
    for name in rng.sample(names, min(len(names), 20)):
        dims = [rng.choice(DIMENSIONS) for _ in range(rng.randint(0, 5))]
        model.graph.value_info.append(helper.make_tensor_value_info(name, 1, None))
        model.graph.value_info[-1].type.tensor_type.elem_type = rng.choice(TYPES)
        for dim in dims:
            model.graph.value_info[-1].type.tensor_type.shape.dim.add(dim_value=dim)


MUTATIONS: dict[str, GraphMutation] = {
    change.__name__: change
    for change in (
        drop_input, drop_output, drop_all_inputs, drop_all_outputs, double_input, double_output,
        reorder_inputs_and_outputs, swap_two_names, rename_info, rename_everywhere,
        rename_all_caches, change_dimension, change_every_dimension, change_every_cache,
        change_rank, drop_shapes, drop_type, change_element_type, change_cache_types, no_tensor,
        contradict_value_infos,
    )
}  # fmt: skip
