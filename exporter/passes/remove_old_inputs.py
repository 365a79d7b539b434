"""Removes the old cache, mask and position inputs and all that only they needed."""

from __future__ import annotations

import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from minicache.exporter.graph import describe
from minicache.exporter.sites import ModelDescription
from minicache.runtime.errors import UnsupportedModelError

LOGITS = "logits"
KEPT = ("input_ids", "past_lengths", "total_lengths", "logit_positions")


def _is_new(value: ir.Value) -> bool:
    name = value.name or ""
    return name in KEPT or name.startswith("past_minicache.")


class RemoveOldInputsPass(ir.passes.InPlacePass):
    """Leaves the new inputs as the only inputs, ``logits`` and the new state as outputs."""

    def __init__(self, description: ModelDescription) -> None:
        super().__init__()
        self.description = description

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Drops outputs, then dead nodes, then inputs.

        Raises:
            UnsupportedModelError: something that is still computed needs an old input.
        """
        graph = model.graph
        keep = [self.description.logits]
        keep += [v for v in graph.outputs if (v.name or "").startswith("present_minicache.")]
        graph.outputs[:] = keep
        self.description.logits.name = LOGITS  # whatever the original calls them
        common_passes.RemoveUnusedNodesPass()(model)
        for value in list(graph.inputs):
            if _is_new(value):
                continue
            uses = list(value.uses())
            if uses:
                raise UnsupportedModelError(
                    f"{describe(uses[0].node)} needs the input {value.name!r} for something other "
                    "than attention masks and positions, which the rewritten graph no longer has; "
                    "report this graph"
                )
            graph.inputs.remove(value)
        order = {name: index for index, name in enumerate(KEPT)}
        graph.inputs[:] = sorted(graph.inputs, key=lambda v: order.get(v.name or "", len(order)))
        _forget_symbols(graph)
        return ir.passes.PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        """Checks that only new inputs are left."""
        old = [value.name for value in model.graph.inputs if not _is_new(value)]
        if old:
            raise ir.passes.PostconditionError(f"inputs left over: {old}")


def _forget_symbols(graph: ir.Graph) -> None:
    """Clears inferred shapes that speak of symbols of the old inputs; they may be wrong now."""
    known = {
        dim.value
        for value in (*graph.inputs, *graph.outputs)
        for dim in value.shape or ()
        if isinstance(dim, ir.SymbolicDim)
    }
    outputs = set(graph.outputs)
    for node in graph:
        for value in node.outputs:
            if value in outputs or value.shape is None:
                continue
            symbols = {dim.value for dim in value.shape if isinstance(dim, ir.SymbolicDim)}
            if symbols - known - {None}:
                value.shape = None
