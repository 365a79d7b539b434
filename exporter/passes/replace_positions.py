"""Replaces what the graph counts from its old cache or mask: positions, batch size, new tokens.

Graphs without ``position_ids`` count for themselves: from the shape of the past, or with a
cumulative sum over ``attention_mask``; others take the batch size from the past. What a node counts
is found by its result on two inputs: past, past + 1, ... for every new token is a position.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from minicache.exporter.build import Inserter, first_node
from minicache.exporter.mask_probe import position_feeds
from minicache.exporter.passes.add_runtime_inputs import BATCH, INT64, SEQUENCE, RuntimeInputs
from minicache.exporter.probe import evaluate
from minicache.exporter.sites import ModelDescription
from minicache.runtime.errors import UnsupportedModelError

# Operators that count and shape; the walk never enters the network itself.
# fmt: off
_COUNTING = frozenset((
    "Add", "And", "Cast", "Clip", "Concat", "ConstantOfShape", "CumSum", "Div", "Equal", "Expand",
    "Gather", "Greater", "Identity", "Less", "Max", "Min", "Mul", "Not", "Range", "ReduceSum",
    "Reshape", "Shape", "Slice", "Squeeze", "Sub", "Unsqueeze", "Where",
))
# fmt: on
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)
# (batch, past, new) of the two runs; every number changes, so that none is met by chance.
_RUNS = ((2, 5, 3), (4, 11, 7))


class ReplacePositionsPass(ir.passes.InPlacePass):
    """Finds counts that depend on old inputs and replaces them by ones from the new inputs."""

    def __init__(self, description: ModelDescription, inputs: RuntimeInputs) -> None:
        super().__init__()
        self.description, self.inputs = description, inputs

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replaces every count found."""
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
        found = self._meanings(model, _counted(model.graph, sources))
        b = Inserter(model.graph, first_node(model.graph), "counts")
        for value, meaning in found.items():
            value.replace_all_uses_with(self._substitute(b, meaning))
        return ir.passes.PassResult(model, modified=bool(found))

    def _meanings(self, model: ir.Model, candidates: list[ir.Value]) -> dict[ir.Value, str]:
        """What each candidate counts; those without a meaning are left out."""
        if not candidates:
            return {}
        meanings: list[dict[ir.Value, str]] = []
        for batch, past, new in _RUNS:
            feeds = position_feeds(self.description, self.inputs.positions, batch, past, new)
            try:
                arrays = evaluate(model, candidates, feeds)
            except UnsupportedModelError:
                # Something among them is no plain count; RemoveOldInputsPass names what is left.
                return {}
            named = [_meaning(array, batch, past, new) for array in arrays]
            meanings.append({v: n for v, n in zip(candidates, named, strict=True) if n})
        return {v: name for v, name in meanings[0].items() if meanings[1].get(v) == name}

    def _substitute(self, b: Inserter, meaning: str) -> ir.Value:
        """The new value; the graph is sorted later."""
        name, _, rank = meaning.partition("/")
        if name == "positions":
            if rank == "2":
                return self.inputs.positions
            axis = 1 if rank == "row" else 2
            axes = b.constant(f"axis_{axis}", np.array([axis], np.int64))
            expanded: list[int | str] = [BATCH, SEQUENCE]
            expanded.insert(axis, 1)
            return b.node("Unsqueeze", [self.inputs.positions, axes], ir.DataType.INT64, expanded)
        if name == "total":
            # Of the longest row, as the width of the old mask was: what chooses between the tables
            # of a long-context RoPE.
            dims = [1] if rank == "1" else []
            keep = {"keepdims": int(rank == "1")}
            longest = b.node(
                "ReduceMax", [self.inputs.total_lengths], ir.DataType.INT32, dims, keep
            )
            return b.node("Cast", [longest], ir.DataType.INT64, dims, {"to": INT64.value})
        shape = b.node("Shape", [self.description.input_ids], ir.DataType.INT64, [2])
        axis = 0 if name == "batch" else 1
        index = np.array([axis] if rank == "1" else axis, np.int64)
        picked = b.constant(f"index_{axis}_{rank}", index)
        dims = [1] if rank == "1" else []
        return b.node("Gather", [shape, picked], ir.DataType.INT64, dims, {"axis": 0})


def _meaning(array: np.ndarray, batch: int, past: int, new: int) -> str:
    if array.dtype != np.int64:
        return ""
    for rank, ends in (("2", (new,)), ("column", (new, 1)), ("row", (1, new))):
        if array.shape in ((1, *ends), (batch, *ends)):
            wanted = np.arange(past, past + new).reshape(ends)
            return f"positions/{rank}" if (array == wanted).all() else ""
    if array.shape in ((), (1,)):
        counts = {batch: "batch", new: "new", past + new: "total"}
        name = counts.get(int(array.reshape(())))
        return f"{name}/{array.ndim}" if name else ""
    return ""


def _counted(graph: ir.Graph, sources: Iterable[ir.Value]) -> list[ir.Value]:
    """Values that depend on ``sources`` through counting operators only, in graph order."""
    reached = set(sources)
    found = []
    for node in graph:
        # A counted target shape of Reshape or Expand counts nothing about the reshaped tensor.
        inputs = node.inputs[:1] if node.op_type in ("Reshape", "Expand") else node.inputs
        if node.op_type not in _COUNTING or not any(value in reached for value in inputs):
            continue
        outputs = [value for value in node.outputs if value.dtype not in _FLOATS]
        reached.update(outputs)
        found += outputs
    return found
