"""The ONNX model of one group, as an exporter would write its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from minicache.exporter import schemas

Array = np.ndarray
State = dict[str, Array]


def wait_for(slot: int, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Nodes that let layer ``slot`` depend on the attention below it, as it does in a real model.

    ONNX Runtime orders nodes by data only, and the writer must come last. The past lengths get 0
    times the largest dimension of that attention added.
    """
    node.input[3] = f"past_lengths_{slot}"
    return [
        helper.make_node("Shape", [f"attention_{slot - 1}"], [f"shape_{slot}"]),
        helper.make_node("Cast", [f"shape_{slot}"], [f"shape32_{slot}"], to=TensorProto.INT32),
        helper.make_node("ReduceMax", [f"shape32_{slot}"], [f"largest_{slot}"]),
        helper.make_node("Mul", [f"largest_{slot}", "zero"], [f"nothing_{slot}"]),
        helper.make_node("Add", ["past_lengths", f"nothing_{slot}"], [node.input[3]]),
    ]


def group_model(
    attributes: dict[str, Any], dtype: Any, state: State, tables: Sequence[State] = ()
) -> onnx.ModelProto:
    """A model of the G nodes of one group, for these attributes, types and state shapes.

    The ``tables`` of ``subspace``, constant inputs per layer, become initializers. Dimensions that
    have no letter are unknown and unnamed, as they often are in a real model.
    """
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs: dict[str, Any] = {}
    nodes, outputs = [], []
    constants = [numpy_helper.from_array(np.int32(0), "zero")]

    def declare(name: str, kind: int, shape: list[Any]) -> str:
        inputs[name] = helper.make_tensor_value_info(name, kind, shape)
        return name

    for slot in range(attributes["group_size"]):
        full = schemas.attributes_with_defaults({**attributes, "group_slot": slot})
        names = []
        for name in schemas.input_names(full):
            if name in ("query", "key", "value"):
                names.append(declare(f"{name}_{slot}", element, ["B", "S", None]))
            elif name[:2] in ("k_", "v_"):
                names.append(f"{'key' if name[0] == 'k' else 'value'}_{name[2:]}")
            elif name.endswith("_lengths"):
                names.append(declare(name, TensorProto.INT32, ["B"]))
            elif name == "attention_bias":
                names.append(declare(name, element, [None, None, "S", None]))
            elif name == "head_sink":
                names.append(declare(name, element, [full["num_heads"]]))
            elif not name.startswith("past_"):
                names.append(f"{name}_{slot}")
                constants.append(numpy_helper.from_array(tables[slot][name], names[-1]))
            else:
                array = state[name.removeprefix("past_")]
                kind = helper.np_dtype_to_tensor_dtype(array.dtype)
                names.append(declare(name, kind, ["B", *array.shape[1:]]))
        results = [f"{n}_{slot}" if n == "attention" else n for n in schemas.output_names(full)]
        given = {k: list(v) if isinstance(v, tuple) else v for k, v in full.items()}
        given = {k: v for k, v in given.items() if v != []}
        node = helper.make_node(schemas.OP_TYPE, names, results, f"layer_{slot}", **given)
        node.domain = schemas.DOMAIN
        if slot:
            nodes += wait_for(slot, node)
        nodes.append(node)
        outputs.append(helper.make_tensor_value_info(results[0], element, ["B", "S", None]))
    for name, array in state.items():
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        shape = ["B", *array.shape[1:]]
        outputs.append(helper.make_tensor_value_info(f"present_{name}", kind, shape))
    graph = helper.make_graph(nodes, "group", list(inputs.values()), outputs, constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(schemas.DOMAIN, schemas.VERSION)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def as_ort_value(array: Array) -> ort.OrtValue:
    """An OrtValue on the array's own memory; bf16, which NumPy lacks, by its bits."""
    if array.dtype.name == "bfloat16":
        kind = TensorProto.BFLOAT16
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), kind)
    return ort.OrtValue.ortvalue_from_numpy(array)
