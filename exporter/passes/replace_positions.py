"""Replaces positions that the graph computes from its cache or mask by the new positions.

Graphs without ``position_ids`` count for themselves: from the shape of the past, or with a cumulative
sum over ``attention_mask``. What counts is found by its result: the integers past, past + 1, ... for
every new token.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from minicache.exporter.mask_probe import token_feeds
from minicache.exporter.passes.add_runtime_inputs import RuntimeInputs
from minicache.exporter.probe import evaluate
from minicache.exporter.sites import ModelDescription
from minicache.runtime.errors import UnsupportedModelError

# Operators that count and shape; the walk never enters the network itself.
_COUNTING = frozenset(
    "Add And Cast Clip Concat ConstantOfShape CumSum Div Equal Expand Gather Greater Identity Less "
    "Max Min Mul Not Range ReduceSum Reshape Shape Slice Squeeze Sub Unsqueeze Where".split()
)
# (batch, past, new) of the two runs; no number is equal to another by chance.
_RUNS = ((2, 5, 3), (2, 11, 7))


class ReplacePositionsPass(ir.passes.InPlacePass):
    """Finds [1 or B, S] position tensors that depend on old inputs and replaces them."""

    def __init__(self, description: ModelDescription, inputs: RuntimeInputs) -> None:
        super().__init__()
        self.description, self.inputs = description, inputs

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replaces every position tensor found."""
        sites = self.description.sites
        present = {value for site in sites for value in (site.present_key, site.present_value)}
        outputs = model.graph.outputs
        # Nothing may read the new positions yet: as an output they survive the cleaning.
        outputs[:] = [*(value for value in outputs if value not in present), self.inputs.positions]
        common_passes.RemoveUnusedNodesPass()(model)
        outputs.pop()
        sources = [value for site in sites for value in (site.past_key, site.past_value)]
        if self.description.attention_mask is not None:
            sources.append(self.description.attention_mask)
        candidates = _counted(model.graph, sources)
        if not candidates:
            return ir.passes.PassResult(model, modified=False)
        replaced = False
        for value in self._positions(model, candidates):
            value.replace_all_uses_with(self.inputs.positions)
            replaced = True
        return ir.passes.PassResult(model, modified=replaced)

    def _positions(self, model: ir.Model, candidates: list[ir.Value]) -> list[ir.Value]:
        left = candidates
        for batch, past, new in _RUNS:
            feeds = token_feeds(self.description, batch, past, new)
            try:
                arrays = evaluate(model, left, feeds)
            except UnsupportedModelError:
                # Something among them is no plain count; RemoveOldInputsPass names what is left.
                return []
            wanted = np.arange(past, past + new)
            left = [
                value
                for value, array in zip(left, arrays, strict=True)
                if array.dtype.kind == "i"
                and array.shape in ((1, new), (batch, new))
                and (array == wanted).all()
            ]
        return left


def _counted(graph: ir.Graph, sources: Iterable[ir.Value]) -> list[ir.Value]:
    """Values that depend on ``sources`` through counting operators only, in graph order."""
    reached = set(sources)
    found = []
    for node in graph:
        if node.op_type in _COUNTING and any(value in reached for value in node.inputs):
            reached.update(node.outputs)
            found += list(node.outputs)
    return found
