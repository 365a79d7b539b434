"""Adds the inputs of the new contract and the RoPE positions that follow from them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from minicache.exporter.build import Inserter, first_node
from minicache.exporter.sites import ModelDescription

INT32, INT64 = ir.DataType.INT32, ir.DataType.INT64
BATCH, SEQUENCE, ROWS, CAPACITY = "batch", "sequence", "logits_per_row", "capacity"


class RuntimeInputs:
    """The values that ``AddRuntimeInputsPass`` creates, for the passes after it.

    Attributes:
        past_lengths: int32 [batch], tokens cached per row before the call.
        total_lengths: int32 [batch], tokens after it.
        logit_positions: int64 [batch, logits_per_row], new tokens whose logits are wanted.
        positions: int64 [batch, sequence], position of every new token.
    """

    def __init__(self) -> None:
        self.past_lengths = _input("past_lengths", INT32, [BATCH])
        self.total_lengths = _input("total_lengths", INT32, [BATCH])
        self.logit_positions = _input("logit_positions", INT64, [BATCH, ROWS])
        self.positions = ir.Value(
            name="minicache/positions",
            type=ir.TensorType(INT64),
            shape=ir.Shape([BATCH, SEQUENCE]),
        )


def _input(name: str, dtype: ir.DataType, shape: list[int | str]) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))


class AddRuntimeInputsPass(ir.passes.InPlacePass):
    """Adds the inputs, computes positions, and lets them take the place of ``position_ids``."""

    def __init__(self, description: ModelDescription, inputs: RuntimeInputs) -> None:
        super().__init__()
        self.description, self.inputs = description, inputs

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Adds inputs and positions."""
        graph, inputs = model.graph, self.inputs
        input_ids = self.description.input_ids
        input_ids.shape = ir.Shape([BATCH, SEQUENCE])
        kind = input_ids.dtype
        if kind not in (INT64, None):  # the session feeds int64
            narrow = Inserter(graph, first_node(graph), "ids")
            input_ids.type = ir.TensorType(INT64)
            readers = list(input_ids.uses())
            cast = narrow.node("Cast", [input_ids], kind, [BATCH, SEQUENCE], {"to": kind.value})
            for use in readers:
                use.node.replace_input_with(use.idx, cast)
        graph.inputs.extend([inputs.past_lengths, inputs.total_lengths, inputs.logit_positions])
        b = Inserter(graph, first_node(graph), "positions")
        one = b.constant("one", np.array(1, np.int64))
        zero = b.constant("zero", np.array(0, np.int64))
        axis0 = b.constant("axis_0", np.array([0], np.int64))
        axis1 = b.constant("axis_1", np.array([1], np.int64))
        shape = b.node("Shape", [input_ids], INT64, [2])
        length = b.node("Gather", [shape, one], INT64, [], {"axis": 0})
        offsets = b.node("Range", [zero, length, one], INT64, [SEQUENCE])
        offsets_1S = b.node("Unsqueeze", [offsets, axis0], INT64, [1, SEQUENCE])
        past_B = b.node("Cast", [inputs.past_lengths], INT64, [BATCH], {"to": INT64.value})
        past_B1 = b.node("Unsqueeze", [past_B, axis1], INT64, [BATCH, 1])
        running_BS = b.node("Add", [past_B1, offsets_1S], INT64, [BATCH, SEQUENCE])
        total_B = b.node("Cast", [inputs.total_lengths], INT64, [BATCH], {"to": INT64.value})
        total_B1 = b.node("Unsqueeze", [total_B, axis1], INT64, [BATCH, 1])
        before_B1 = b.node("Sub", [total_B1, one], INT64, [BATCH, 1])
        last_B1 = b.node("Max", [before_B1, zero], INT64, [BATCH, 1])
        # Padded tokens take the last valid position: a position table may end there.
        b.insert("Min", [running_BS, last_B1], [inputs.positions])
        old = self.description.position_ids
        if old is not None and old.dtype in (INT64, None):
            old.replace_all_uses_with(inputs.positions)
        elif old is not None and old.dtype is not None:
            to = {"to": old.dtype.value}
            cast = b.node("Cast", [inputs.positions], old.dtype, [BATCH, SEQUENCE], to)
            old.replace_all_uses_with(cast)
        return ir.passes.PassResult(model, modified=True)
