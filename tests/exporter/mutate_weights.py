"""Mutations of weights: their numbers, sizes, types and names."""

from __future__ import annotations

import random

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from tests.exporter.mutate_nodes import GraphMutation, value_names
from tests.exporter.mutate_values import DIMENSIONS, NAMES, TYPES


def weight(model: onnx.ModelProto, rng: random.Random) -> TensorProto:
    """An initializer, small ones (shapes, scalars) half of the time."""
    tensors = list(model.graph.initializer) or [model.graph.initializer.add(name="weight")]
    small = [tensor for tensor in tensors if int(np.prod(tensor.dims or [1])) <= 16]
    return rng.choice(small if small and rng.random() < 0.5 else tensors)


def numbers_of_weight(model: onnx.ModelProto, rng: random.Random) -> None:
    """Other numbers of the right size and type: NaN, infinite, huge, or zero."""
    tensor = weight(model, rng)
    if tensor.data_type and not tensor.external_data:
        array = numpy_helper.to_array(tensor).copy()
        number = rng.choice((float("nan"), float("inf"), 0, -1, 1e30, 2**40))
        with np.errstate(all="ignore"):
            array[...] = np.asarray(number).astype(array.dtype)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def size_of_weight(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = weight(model, rng)
    tensor.raw_data = tensor.raw_data[: rng.randrange(len(tensor.raw_data) + 1)] + b"\x07" * (
        rng.choice((0, 1, 4, 999))
    )


def dims_of_weight(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = weight(model, rng)
    dims = [*tensor.dims] or [1]
    dims[rng.randrange(len(dims))] = rng.choice(DIMENSIONS)
    tensor.dims[:] = rng.choice((dims, dims[::-1], [], [*dims, 1], [2**62, 4], [0]))


def type_of_weight(model: onnx.ModelProto, rng: random.Random) -> None:
    weight(model, rng).data_type = rng.choice(TYPES)


def weight_without_data(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = weight(model, rng)
    name, kind = tensor.name, tensor.data_type
    dims = rng.choice(([*tensor.dims], [2**30, 2**10], [2**62], [-1], []))
    tensor.Clear()
    tensor.name, tensor.data_type = name, kind
    tensor.dims[:] = dims


def data_in_two_fields(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = weight(model, rng)
    tensor.float_data.extend([1.0, 2.0])
    tensor.int64_data.extend([1])
    if rng.random() < 0.5:
        tensor.ClearField("raw_data")


def drop_weight(model: onnx.ModelProto, rng: random.Random) -> None:
    model.graph.initializer.remove(weight(model, rng))


def rename_weight(model: onnx.ModelProto, rng: random.Random) -> None:
    weight(model, rng).name = rng.choice((*NAMES, *value_names(model)))


def swap_weights(model: onnx.ModelProto, rng: random.Random) -> None:
    one, two = weight(model, rng), weight(model, rng)
    one.name, two.name = two.name, one.name


def input_as_weight(model: onnx.ModelProto, rng: random.Random) -> None:
    """An initializer gives an input a default: past, mask or tokens become constant."""
    if model.graph.input:
        name = rng.choice(list(model.graph.input)).name
        array = np.zeros(rng.choice(([1, 1], [1, 2, 3, 8], [])), np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))


def sparse_weight(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = weight(model, rng)
    sparse = model.graph.sparse_initializer.add(dims=list(tensor.dims))
    sparse.values.CopyFrom(tensor)
    model.graph.initializer.remove(tensor)


MUTATIONS: dict[str, GraphMutation] = {
    change.__name__: change
    for change in (
        numbers_of_weight, size_of_weight, dims_of_weight, type_of_weight, weight_without_data,
        data_in_two_fields, drop_weight, rename_weight, swap_weights, input_as_weight,
        sparse_weight,
    )
}  # fmt: skip
