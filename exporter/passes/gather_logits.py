"""Computes logits only where they are wanted: hidden states are gathered before the LM head.

A prefill of S tokens would otherwise materialise S x vocabulary logits to use one row.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from minicache.exporter.build import Inserter
from minicache.exporter.graph import scalar, static_dim
from minicache.exporter.passes.add_runtime_inputs import BATCH, ROWS, RuntimeInputs
from minicache.exporter.sites import ModelDescription

_HEADS = frozenset({"MatMul", "MatMulNBits", "FusedMatMul"})
_TOKENWISE = frozenset({"Cast", "Identity", "Tanh", "Mul", "Div", "Add"})


class GatherLogitsPass(ir.passes.InPlacePass):
    """Gathers at ``logit_positions`` before the LM head, or after it where it is not found."""

    def __init__(self, description: ModelDescription, inputs: RuntimeInputs) -> None:
        super().__init__()
        self.description, self.inputs = description, inputs

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Inserts the ``GatherND`` and gives the logits their new shape."""
        logits = self.description.logits
        head = find_head(logits)
        node = head if head is not None else logits.producer()
        assert node is not None
        b = Inserter(model.graph, node, "logits")
        axis = b.constant("axis_last", np.array([-1], np.int64))
        wanted = self.inputs.logit_positions
        indices = b.node("Unsqueeze", [wanted, axis], ir.DataType.INT64, [BATCH, ROWS, 1])
        if head is not None:
            hidden = head.inputs[0]
            assert hidden is not None
            dtype = hidden.dtype or self.description.sites[0].dtype
            shape = [BATCH, ROWS, static_dim(hidden, 2)]
            rows = b.node("GatherND", [hidden, indices], dtype, shape, {"batch_dims": 1})
            head.replace_input_with(0, rows)
            _forget_shapes(logits, head)
        else:
            self.description.notes.append(
                "the LM head was not found: logits of all tokens are computed, then gathered"
            )
            self._gather_output(model, b, indices)
        logits.shape = ir.Shape([BATCH, ROWS, self.description.vocab_size])
        return ir.passes.PassResult(model, modified=True)

    def _gather_output(self, model: ir.Model, b: Inserter, indices: ir.Value) -> None:
        logits, node = self.description.logits, self.description.logits.producer()
        assert node is not None
        index = list(model.graph.outputs).index(logits)
        picked = ir.Value(name=logits.name, type=logits.type)
        logits.name = f"{logits.name}/all"
        gather = ir.node(
            "GatherND",
            [logits, indices],
            {"batch_dims": 1},
            outputs=[picked],
            name="minicache/logits",
        )
        model.graph.insert_after(node, gather)
        model.graph.outputs[index] = picked
        self.description.logits = picked
        picked.shape = ir.Shape([BATCH, ROWS, self.description.vocab_size])


def find_head(logits: ir.Value) -> ir.Node | None:
    """The LM head: the matrix product behind casts, scales and softcaps of the logits."""
    value = logits
    while (node := value.producer()) is not None:
        if node.op_type in _HEADS:
            hidden = node.inputs[0]
            # Known to be flattened to two dimensions: positions no longer address rows.
            return None if hidden is not None and len(hidden.shape or (0,) * 3) != 3 else node
        if node.op_type not in _TOKENWISE or len(value.uses()) > 1:
            return None
        moving = [
            v for v in node.inputs if v is not None and v.const_value is None and scalar(v) is None
        ]
        if len(moving) != 1:
            return None
        value = moving[0]
    return None


def _forget_shapes(logits: ir.Value, head: ir.Node) -> None:
    """Clears inferred shapes between head and logits: they speak of all tokens."""
    value = logits
    while (node := value.producer()) is not None:
        value.shape = None
        if node is head:
            return
        value = next(
            v for v in node.inputs if v is not None and scalar(v) is None and v.const_value is None
        )
