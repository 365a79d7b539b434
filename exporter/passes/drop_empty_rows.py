"""Removes the ``Where`` that zeroes the rows of attention which see no token.

Transformers' exporter writes it behind the attention, for padding. A causal row sees itself, so the
condition is false everywhere; that is proved by computing it, as masks are.
"""

from __future__ import annotations

import onnx_ir as ir

from minicache.exporter import graph as g
from minicache.exporter.mask_probe import position_feeds
from minicache.exporter.passes.add_runtime_inputs import RuntimeInputs
from minicache.exporter.probe import evaluate
from minicache.exporter.sites import ModelDescription
from minicache.runtime.errors import UnsupportedModelError

# Operators of the network itself: a condition behind them depends on data.
_NETWORK = frozenset(("MatMul", "MatMulNBits", "Gemm", "Softmax", "Attention", "TopK"))
# (batch, past, new) of the runs that prove it.
_RUNS = ((1, 5, 3), (1, 11, 7))


class DropEmptyRowsPass(ir.passes.InPlacePass):
    """Replaces ``Where(condition, zeros, x)`` by x where the condition of masks is never true."""

    def __init__(self, description: ModelDescription, inputs: RuntimeInputs) -> None:
        super().__init__()
        self.description, self.inputs = description, inputs

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Drops them all."""
        found = [node for node in model.graph if node.op_type == "Where" and self._of_masks(node)]
        conditions = list(dict.fromkeys(node.inputs[0] for node in found))
        never = {value for value in conditions if value is not None and self._never(model, value)}
        modified = False
        for node in found:
            kept = node.inputs[2]
            if node.inputs[0] in never and kept is not None:
                node.outputs[0].replace_all_uses_with(kept)
                modified = True
        return ir.passes.PassResult(model, modified=modified)

    def _of_masks(self, node: ir.Node) -> bool:
        """Whether a condition comes from the old cache or mask, and selects rows of floats."""
        condition = node.inputs[0]
        if condition is None or node.inputs[2] is None or node.inputs[2].producer() is None:
            return False
        old = {
            value for site in self.description.sites for value in (site.past_key, site.past_value)
        }
        if self.description.attention_mask is not None:
            old.add(self.description.attention_mask)
        reached = False
        for above in g.ancestors(condition):
            if above.op_type in _NETWORK or above.domain:
                return False
            reached = reached or any(value in old for value in above.inputs if value is not None)
        return reached

    def _never(self, model: ir.Model, condition: ir.Value) -> bool:
        for batch, past, new in _RUNS:
            feeds = position_feeds(self.description, self.inputs.positions, batch, past, new)
            try:
                (array,) = evaluate(model, [condition], feeds)
            except UnsupportedModelError:
                return False
            if array.any():
                return False
        return True
